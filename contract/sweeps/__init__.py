"""Sweeps: kernels judged on every value that an operand can hold, in shards, with a ledger of what is done."""
