"""Planted kernels that show the checks at work: red ones must be caught, green ones must pass."""
