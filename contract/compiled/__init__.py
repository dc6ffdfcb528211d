"""Resources of compiled kernels: what architectures allow, and what compilers say that a kernel takes.

Nothing here imports torch or a compiler.
"""
