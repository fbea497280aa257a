"""How many examples Hypothesis draws for a test: a part in `make test`, all of them in `make test-ci`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

PERCENT = int(os.environ.get("EXAMPLES_PERCENT", "100"))
LEAST = 10


def examples(count: int) -> int:
    """`EXAMPLES_PERCENT` of `count`, which a test draws in whole; at least ten of them."""
    return max(min(count, LEAST), count * PERCENT // 100)


def rounds(count: int) -> int:
    """`EXAMPLES_PERCENT` of `count`, for tests with the mark `seeds`: at least two."""
    return max(min(count, 2), count * PERCENT // 100)


def one_in(count: int, rows: Iterable[Any]) -> list[Any]:
    """Returns rows for `parametrize`: the first of each `count` is in `make test`, the others have the mark `slow`."""
    return [
        pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=() if place % count == 0 else pytest.mark.slow)
        for place, row in enumerate(rows)
    ]
