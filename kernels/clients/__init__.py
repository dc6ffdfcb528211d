"""Other people's kernels as implementations of our contracts.

Each module here imports its package only when that package is installed.
"""
