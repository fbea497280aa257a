"""Every run that has violated an invariant once, with the faults that it took: none does any more.

Campaigns add to them.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.campaign.found import FoundRun, load, repeat

FOUND = load()


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found, marks=() if place < 1 else pytest.mark.slow, id=f"{found.reason[:40]} {found.run.seed}")
        for place, found in enumerate(FOUND)
    ],
)
def test_what_was_found_is_fixed(found: FoundRun) -> None:
    """`repeat` raises the violation with the history of the run."""
    assert repeat(found.run).operations > 0, msgspec.json.encode(found.run)
