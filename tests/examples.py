"""How many examples Hypothesis draws for a test: a part in `make test`, all of them in `make test-ci`."""

from __future__ import annotations

import os

PERCENT = int(os.environ.get("EXAMPLES_PERCENT", "100"))
LEAST = 10


def examples(count: int) -> int:
    """`EXAMPLES_PERCENT` of `count`, which a test draws in whole; at least ten of them."""
    return max(min(count, LEAST), count * PERCENT // 100)


def rounds(count: int) -> int:
    """`EXAMPLES_PERCENT` of `count`, for tests with the mark `seeds`: at least two."""
    return max(min(count, 2), count * PERCENT // 100)
