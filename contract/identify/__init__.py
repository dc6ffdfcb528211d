"""Which rounding a black box implements: its outputs against every profile, option and subset of rounding points.

The parts: `target` loads and calls it in a worker, `binding` says how, `hypotheses` lists what it may compute, `fit`
compares, `words` and `paste` say what was found, `command` is `contract identify`.
"""
