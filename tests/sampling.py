"""Slow tests in full or sampled: CI runs each of them once, on a part of what the nightly run takes."""

from __future__ import annotations

import os

#: Whether slow tests run in their sampled form, as .ci/run asks for.
SAMPLED = os.environ.get("CONTRACT_SLOW") == "sample"
