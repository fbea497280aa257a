"""A delete reaches an idle follower, and its report the leader, in two round trips."""

from __future__ import annotations

import pytest

from .rounds import COUNTED, Rounds, Rules
from .search import search


def test_two_round_trips():
    """The leader's answer and the follower's report; the delete's own request is the other round trip."""
    found = search(Rounds(Rules(), rounds=1), faults=0)
    assert not found.broken, str(found)


@pytest.mark.parametrize("new", [False, True], ids=["leader for long", "new leader"])
def test_no_long_wait_even_with_slow_disks(new: bool):
    """More rounds of milliseconds each; never a round that lasts until the end of a long wait."""
    found = search(Rounds(Rules(), rounds=COUNTED, new=new), faults=2)
    assert not found.broken, str(found)


@pytest.mark.parametrize(
    ("rules", "new", "faults", "steps"),
    [
        (Rules(level=False), False, 0, 3),
        (Rules(short_wait=False), False, 1, 6),
        (Rules(new_leader_wakes=False), True, 0, 4),
        (Rules(missing_is_short=False), True, 0, 5),
    ],
    ids=["a level, not an edge", "short wait", "a new leader wakes", "a missing partition makes the wait short"],
)
def test_otherwise_a_delete_waits_for_a_timer(rules: Rules, new: bool, faults: int, steps: int):
    found = search(Rounds(rules, rounds=COUNTED, new=new), faults=faults)
    print(found)
    assert found.broken.startswith("DR5: only the end of a long wait"), str(found)
    assert found.length == steps, str(found)


def test_without_the_hold_every_delete_takes_a_round_more():
    """The follower would fetch while its disk writes, and would have nothing to report."""
    found = search(Rounds(Rules(hold=False), rounds=1), faults=0)
    print(found)
    assert found.broken == "DR5: 2 answers before the delete is reported", str(found)
    assert found.length == 10, str(found)
