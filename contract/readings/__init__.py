"""The readings of a reference: range, sample, nominal (with drops) and audit.

A reference is one function `f(r, *inputs, **settings)`. It computes with the values it is given and with the reading
`r`; the reading decides what a value is: a set, one legal execution, the plain execution with one thing changed, or a
number of 200 bits.
"""
