"""Contracts and torch implementations: this project's suite (entry-point group `contract.suites`)."""

#: Loaded with the suite: planted kernels.
SUITE_PACKAGES = ("contract.controls",)
#: Where the suite's resource records lie.
SUITE_RECORDS = "contract.records"
