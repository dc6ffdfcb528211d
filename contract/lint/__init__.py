"""`contract lint`: what a test suite or a suite of contracts could not see, whatever the kernel does.

Test files are read, not run: tolerances (contract.lint.tolerances), symmetric inputs (operands), failures that are
expected and would be met by any mistake (negatives). Suites of contracts are loaded as `contract run` loads them: their
shapes are compared with blocks (blocks), their rows are moved as other conventions read them (rows), their planted
controls are called on small cases (plants).
"""
