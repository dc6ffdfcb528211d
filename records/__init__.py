"""Measured facts, one `NAME.json` per kernel, and in `rows/NAME.json` the rows it once failed on.

Floats are written as `float.hex()` strings or as integer bit patterns; each field names its unit.
"""
