"""How tests look for a bug that they have planted: by the promise that it breaks, and by no other failure.

A plant that breaks the program in another way, or breaks another promise, would otherwise count as found, though the checker that it is
meant for sees nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest

from lowtide.simulation.history import HistoryError


def find(expected: str, simulate: Callable[[int], object], seeds: Iterable[int]) -> int:
    """The first seed whose run breaks the expected promise. Without the plant the same seeds break none.

    `expected` is a regular expression of the violation: `D8:`, or what L1 waits for. Other violations are passed over, and named in the
    end. Whatever isn't a violation is raised, and fails the test.
    """
    others: list[str] = []
    for seed in seeds:
        try:
            simulate(seed)
        except HistoryError as error:
            text = f"seed {seed}: {str(error)[:200]}"
            if re.search(rf"\b{expected}", str(error)):
                print(text)
                return seed
            others.append(text)
    pytest.fail("\n".join([f"no seed of {seeds} violates {expected}", *others]))
