"""The rules of deletion hold in the model of a cluster, and each of them is needed: without it a deleted record
returns.

`make model` searches further, in canonical states (`reduction.py`): with any number of faults of each kind, with as
many as FAULTS of all kinds together, and with one of any kind where followers are read and images lag further.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tests.examples import one_in

from .cluster import Cluster
from .cluster_state import ALL_FAULTS, HELD, LEASE, LOST, MOVE, OLD_DIRECTORY, RESTART, Rules, Scope, World
from .reduction import ReducedModel
from .search import search, stuck
from .wide import VisitedStates, visit

NOBODY_READS = None
FAULTS = int(os.environ.get("FAULTS", "0"))
"""A value above zero selects the long search."""

ANY_NUMBER = sys.maxsize
"""The limit of faults; the search ends when no fault leads to another state."""


def scope(*faults: str, reader: int | None = 2, lag: int = 1) -> Scope:
    return Scope(faults=frozenset(faults), reader=reader, lag=lag)


LEASES = "leases end and brokers return, a follower is read"
HOLDS = {
    LEASES: scope(LEASE),
    "brokers restart, some with an old directory": scope(RESTART, OLD_DIRECTORY, reader=NOBODY_READS),
    "fetches are held up, answers lost, a follower is read": scope(HELD, LOST),
    "the leadership moves as planned, a follower is read": scope(MOVE),
}


@pytest.mark.parametrize(
    "allowed",
    [pytest.param(each, id=name, marks=[pytest.mark.slow] if name == LEASES else []) for name, each in HOLDS.items()],
)
def test_no_acknowledged_delete_returns(allowed: Scope):
    """Every state with one fault of those kinds."""
    found = search(Cluster(Rules(), allowed), faults=1)
    assert not found.broken, str(found)


@pytest.mark.parametrize("fault", [RESTART, LEASE, MOVE, LOST] if FAULTS else [LOST])
def test_a_delete_can_be_acknowledged_from_everywhere(fault: str):
    """Rules that forbid everything would break no promise.

    A directory that is too old for an election is left out: if it is the last one, deletes must wait forever.
    """
    found = stuck(Cluster(Rules(), scope(fault, reader=NOBODY_READS)), faults=1, goal=lambda world: world.acknowledged)
    assert not found.broken, str(found)


def test_the_search_gets_far():
    """It acknowledges a delete after a move of leadership with another ISR; otherwise it proves nothing."""

    class Far(Cluster):
        def violation(self, world: World) -> str | None:
            record = world.history[-1]
            leads = record.leader == 1 and world.replicas[1].tenure is not None
            return "far" if world.acknowledged and leads and record.isr[2] and not record.isr[0] else None

    found = search(Far(Rules(), Scope(faults=frozenset((MOVE,)), first_isrs=((0, 1),), reader=NOBODY_READS)), faults=1)
    assert found.broken == "far"


def long_search(name: str, model: Cluster, faults: int) -> VisitedStates:
    """Searches canonical states. A violation is searched again in the model itself, for its trace."""
    found = visit(ReducedModel(model), faults=faults, tell=lambda line: print(f"{name}: {line}", file=sys.stderr))
    print(f"{name}: {found}")
    assert not found.broken, str(search(model, faults=found.faults))
    return found


@pytest.mark.skipif(not FAULTS, reason="takes minutes: make model")
@pytest.mark.parametrize("fault", sorted(ALL_FAULTS))
def test_any_number_of_faults(fault: str):
    """Every kind of fault with restarts, without reads from followers: there are finitely many states."""
    assert long_search(fault, Cluster(Rules(), scope(fault, RESTART, reader=NOBODY_READS)), ANY_NUMBER).is_closed


@pytest.mark.skipif(not FAULTS, reason="takes minutes: make model")
def test_faults_of_any_kind():
    """As many faults as FAULTS, in any mixture, without reads from followers."""
    long_search("all kinds", Cluster(Rules(), scope(*ALL_FAULTS, reader=NOBODY_READS)), FAULTS)


@pytest.mark.skipif(not FAULTS, reason="takes minutes: make model")
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("reader", [0, 2])
def test_one_fault_of_any_kind(reader: int, lag: int):
    """With reads from a follower, or from the first leader; brokers see changes late, by one or by two."""
    long_search(f"reader {reader}, lag {lag}", Cluster(Rules(), scope(*ALL_FAULTS, reader=reader, lag=lag)), 1)


@dataclass(frozen=True)
class Without:
    """A rule that is switched off: its switch, the scope, and the shortest trace to a violation."""

    rule: str
    change: dict[str, Any]
    allowed: Scope
    faults: int
    harm: str
    steps: int


NEEDED = [
    Without("DR1 visible when durable", {"visible_when_durable": False}, scope(RESTART, reader=None), 1, "D5", 2),
    Without("DR1 reported when durable", {"reported_when_durable": False}, scope(reader=None), 0, "D8", 7),
    Without("DR1 acknowledged when durable", {"acknowledged_when_durable": False}, scope(reader=None), 0, "D1", 4),
    Without("DR2 no ISR without the deletes", {"floor": "none"}, scope(reader=None), 0, "D8", 7),
    Without("DR2 the floor rises with acknowledged deletes", {"floor": "elected"}, scope(reader=None), 0, "D8", 7),
    Without(
        "DR2 the floor begins at the leader's log start",
        {"floor": "acknowledged"},
        scope(RESTART, reader=None),
        1,
        "D8",
        11,
    ),
    Without("DR3 the ISR has it", {"asks_isr": False}, scope(reader=None), 0, "D8", 5),
    Without("DR3 every live replica has it", {"asks_live": False}, scope(), 0, "D1", 3),
    Without("DR3 who is about to join has it", {"asks_proposed": False}, scope(reader=None), 0, "D8", 6),
    Without(
        "DR3 reports of this registration",
        {"reports_of_this_registration": False},
        scope(OLD_DIRECTORY, reader=None),
        1,
        "D8",
        11,
    ),
    Without("DR3 a newer broker epoch is live", {"newer_epoch_is_live": False}, scope(LEASE), 1, "D1", 9),
    Without("DR3 a new leader counts all", {"new_leader_counts_all": False}, scope(MOVE), 1, "D1", 9),
    Without(
        "DR3 asks at or below the log start, too", {"asks_at_or_below_start": False}, scope(reader=None), 0, "D8", 3
    ),
    Without("DR7 reads need a fresh answer", {"reads_need_trust": False}, scope(), 0, "D1", 5),
    Without("DR7 of this registration", {"trust_of_this_registration": False}, scope(LEASE), 1, "D1", 7),
    Without("DR7 of this leader epoch", {"trust_of_this_leader_epoch": False}, scope(MOVE), 1, "D1", 11),
    Without("DR7 not too long ago", {"trust_expires": False}, scope(), 0, "D1", 5),
    Without("DR7 counted from the sending", {"trust_counts_from_sending": False}, scope(), 0, "D1", 7),
    Without("DR7 the follower's own log start", {"reads_wait_for_own_start": False}, scope(), 0, "D1", 7),
    Without(
        "DR8 the ISR is of this registration",
        {"isr_of_this_registration": False},
        scope(OLD_DIRECTORY, reader=None),
        1,
        "D8",
        6,
    ),
    Without(
        "DR8 leadership is of this registration",
        {"leads_of_this_registration": False},
        scope(OLD_DIRECTORY, reader=None),
        1,
        "D1",
        6,
    ),
    Without(
        "DR8 old directories are marked", {"stale_is_marked": False}, scope(OLD_DIRECTORY, reader=None), 1, "D8", 6
    ),
    Without("an old image fences its broker", {"image_is_fresh": False}, scope(MOVE), 1, "D1", 10),
]


@pytest.mark.parametrize("without", one_in(3, NEEDED), ids=lambda without: without.rule)
def test_without_one_rule_the_promise_breaks(without: Without):
    """The trace is a shortest one; a change of the model that makes it longer or shorter must be examined."""
    found = search(Cluster(Rules(**without.change), without.allowed), faults=without.faults)
    print(found)
    assert found.broken.startswith(without.harm), str(found)
    assert found.length == without.steps, str(found)


def test_every_switch_is_tried():
    """Every rule of the model is shown to be needed."""
    assert {name for without in NEEDED for name in without.change} == set(Rules.__dataclass_fields__)
