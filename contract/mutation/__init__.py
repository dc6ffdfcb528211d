"""Mutants: one change of an implementation, judged by the gates. What they let pass would be a hole in them.

`ptx` changes instructions of compiled kernels, `source` the Python of the others.
"""
