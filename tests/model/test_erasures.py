"""Erasures: no acknowledged one is undone, no live record disappears, and each rule is needed or known not to be."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.examples import one_in

from . import erasures_compacted_state as compacted
from .erasures import Erasures
from .erasures_compacted import CompactedErasures
from .erasures_state import CUT, EMPTY, MOVE, OLD_VOLUME, STOP, UNCLEAN, Rules, Scope
from .search import search

FAULTS = int(os.environ.get("FAULTS", "0"))
ALL = {STOP, CUT, OLD_VOLUME, EMPTY, MOVE}
COMPACTED_ALL = {compacted.STOP, compacted.CUT, compacted.OLD_VOLUME, compacted.MOVE}
LONE, BOTH = (0,), (0, 1)


def model(kinds: set[str], *off: str, members: tuple[int, ...] = BOTH, **scope: object) -> Erasures:
    """Returns the model with two replicas, if the scope doesn't say three."""
    rules = Rules(**dict.fromkeys(off, False))
    return Erasures(rules, Scope(**{"faults": frozenset(kinds), "members": members, "replicas": 2, **scope}))


HOLDS = {
    "one fault of any kind": (1, model(ALL)),
}
LONG = {
    "an unclean election": (2, model({STOP, UNCLEAN}, members=LONE)),
    "another record of the person": (1, model({CUT, MOVE}, person_again=True)),
    "power cuts of all": (2, model({CUT}, members=LONE)),
    "three replicas, planned moves": (1, model({MOVE}, replicas=3, epochs=2)),
    "two faults of any kind": (2, model(ALL)),
    "three faults of brokers": (3, model({STOP, CUT}, epochs=4)),
    "three replicas, a fault of any kind": (1, model(ALL, replicas=3)),
    "an unclean election and two more faults": (3, model({STOP, CUT, UNCLEAN}, members=LONE)),
}


@pytest.mark.parametrize(
    ("faults", "allowed"),
    [*HOLDS.values(), *(LONG.values() if FAULTS else ())],
    ids=[*HOLDS, *(LONG if FAULTS else ())],
)
def test_no_acknowledged_erasure_is_undone_and_no_live_record_lost(faults: int, allowed: Erasures):
    found = search(allowed, faults=faults)
    print(found)
    assert not found.broken, str(found)


NEEDED = [
    ("effect_waits_for_commit", 0, set(), BOTH, "E2", 1),
    ("leader_stops_before_unknown", 2, {STOP, MOVE}, BOTH, "E1", 12),
    ("follower_stops_before_unknown", 1, {STOP}, BOTH, "E1", 11),
    ("followers_serve_in_the_isr", 1, {STOP}, BOTH, "E1", 7),
    ("effect_drops_queued_slices", 0, set(), BOTH, "E1", 11),
    ("appends_in_epoch_of_search", 1, {CUT, MOVE}, BOTH, "E1", 13),
    ("searches_to_log_end", 1, {MOVE}, BOTH, "E3", 14),
    ("durable_before_reported", 2, {STOP, CUT}, LONE, "E1", 13),
    ("durable_before_rewriting", 1, {CUT}, LONE, "E1", 8),
    ("rewritten_before_confirming", 0, set(), LONE, "E3", 5),
    ("confirms_this_registration", 1, {OLD_VOLUME}, LONE, "E3", 12),
    ("flush_syncs_file", 1, {CUT}, BOTH, "E1", 11),
    ("flush_syncs_removals", 2, {CUT}, BOTH, "E2", 11),
    ("members_confirm", 1, {CUT}, BOTH, "E1", 6),
    ("lost_effect_starts_over", 2, {CUT, MOVE}, LONE, "E1", 12),
]
"""Rule, number and kinds of faults, the ISR at the start, the harm without the rule, steps to it."""

IMPLIED = {
    "durable_before_confirming": "rewriting and reporting already need it",
    "effect_before_confirming": "a file without the records needs no effect, and rewriting waits for it",
    "live_replicas_confirm": "a replica outside the ISR doesn't serve; but the answer promises it",
    "followers_get_filtered": "the erasure follows the records that it names",
}
"""Rules whose absence does no harm here."""


@pytest.mark.parametrize(
    ("rule", "faults", "kinds", "members", "harm", "steps"),
    one_in(3, NEEDED),
    ids=[row[0] for row in NEEDED],
)
def test_each_rule_of_erasures_is_needed(
    rule: str, faults: int, kinds: set[str], members: tuple[int, ...], harm: str, steps: int
):
    away = rule == "durable_before_reported"
    again = rule in {"appends_in_epoch_of_search", "searches_to_log_end"}
    also = ("live_replicas_confirm",) if rule == "members_confirm" else ()
    found = search(model(kinds, rule, *also, members=members, person_again=again, away=away), faults=faults)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)


SLOW = [
    ("recovery_reads_batches", 2, {CUT}, 2, "E2", 11),
    ("begin_is_durable", 3, {CUT, MOVE}, 2, "E1", 15),
    ("isr_needs_epoch_start", 2, {MOVE}, 3, "R1", 7),
]


@pytest.mark.skipif(not FAULTS, reason="takes minutes: make model")
@pytest.mark.parametrize(("rule", "faults", "kinds", "replicas", "harm", "steps"), SLOW, ids=[row[0] for row in SLOW])
def test_each_rule_that_takes_more_faults_is_needed(
    rule: str, faults: int, kinds: set[str], replicas: int, harm: str, steps: int
):
    found = search(model(kinds, rule, replicas=replicas, epochs=4), faults=faults)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)


@pytest.mark.parametrize("rule", one_in(4, sorted(IMPLIED)))
def test_without_an_implied_rule_nothing_is_found(rule: str):
    found = search(model(ALL if FAULTS else {CUT}, rule), faults=1 + bool(FAULTS))
    assert not found.broken, str(found)


def test_the_erasure_can_be_acknowledged_after_an_election():
    """Otherwise the searches prove nothing."""

    class Far(Erasures):
        def violation(self, world: Any) -> str | None:
            return "far" if world.acknowledged and world.epoch > 1 else None

    allowed = model({MOVE})
    assert search(Far(allowed.rules, allowed.scope), faults=1).broken == "far"


def of_compacted(kinds: set[str], *off: str, **scope: object) -> CompactedErasures:
    rules = compacted.Rules(**dict.fromkeys(off, False))
    given = {"faults": frozenset(kinds), "logs": (2, 2), "members": BOTH, **scope}
    return CompactedErasures(rules, compacted.Scope(**given))


OUTSIDE = {"logs": (2, 2, 2), "members": BOTH, "away": True, "epochs": 2, "attempts": 1}
COMPACTED = {
    "one fault of any kind": (1, of_compacted(COMPACTED_ALL)),
    "a replica is empty": (1, of_compacted(COMPACTED_ALL, logs=(2, 0), members=LONE)),
    "the newest version goes too": (1, of_compacted(COMPACTED_ALL, tombstones=True)),
    "a version and the older ones": (1, of_compacted(COMPACTED_ALL, wanted=1)),
    "two parts": (1, of_compacted(COMPACTED_ALL, parts=True)),
    "a replica diverges": (1, of_compacted({STOP, MOVE}, members=LONE, diverging=True)),
}
if FAULTS:
    COMPACTED["a third replica is away"] = (0, of_compacted({STOP}, **OUTSIDE))


@pytest.mark.parametrize(("faults", "allowed"), COMPACTED.values(), ids=COMPACTED)
def test_compacted_logs_lose_every_version_and_nothing_else(faults: int, allowed: CompactedErasures):
    found = search(allowed, faults=faults + bool(FAULTS))
    print(found)
    assert not found.broken, str(found)


NEEDED_COMPACTED = [
    ("starts_over_without_note", 1, {STOP}, {}, "E1", 10),
    ("note_names_the_attempt", 1, {STOP}, {}, "E1", 12),
    ("appends_if_nothing_was_found", 1, {STOP}, {"tombstones": True}, "E1", 8),
    ("leader_searches_first", 2, {STOP, CUT}, {"attempts": 1}, "E1", 19),
    ("searches_at_the_leaders_end", 0, set(), {"logs": (2, 0), "members": LONE}, "E1", 13),
    ("searches_in_this_epoch", 0, set(), {"members": LONE, "diverging": True}, "E2", 3),
    ("answers_of_this_registration", 2, {STOP, OLD_VOLUME}, {}, "R1", 11),
    ("isr_needs_the_erasure", 1, {STOP}, OUTSIDE, "R1", 9),
    ("answers_with_the_last_part", 0, set(), {"parts": True}, "E1", 7),
    ("every_member_searches", 1, {STOP}, {}, "R1", 6),
    ("ends_at_the_named_version", 0, set(), {"wanted": 1}, "E2", 3),
    ("began_after_commit", 0, set(), {"logs": (2, 0), "members": LONE}, "E1", 12),
]
SLOW_COMPACTED = [
    ("met_in_this_epoch", 1, {MOVE}, {**OUTSIDE, "epochs": 3, "attempts": 2}, "E1", 26),
]
UNLESS_ALL_LIVE_SEARCH = {"every_member_searches", "began_after_commit", "met_in_this_epoch"}
"""Needed only if a live replica may be left out of a search."""

IMPLIED_COMPACTED = {
    "every_live_replica_searches": "one without a note starts over; asking it spares that",
    "note_is_durable": "one that has lost its note starts over, and isn't in the ISR",
    "starting_over_drops_notes": "the leader has searched before",
}


COMPACTED_ROWS = NEEDED_COMPACTED + (SLOW_COMPACTED if FAULTS else [])


@pytest.mark.parametrize(
    ("rule", "faults", "kinds", "scope", "harm", "steps"),
    one_in(3, COMPACTED_ROWS),
    ids=[row[0] for row in COMPACTED_ROWS],
)
def test_each_rule_of_compacted_logs_is_needed(
    rule: str, faults: int, kinds: set[str], scope: dict, harm: str, steps: int
):
    also = ("every_live_replica_searches",) if rule in UNLESS_ALL_LIVE_SEARCH else ()
    found = search(of_compacted(kinds, rule, *also, **scope), faults=faults)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)


@pytest.mark.parametrize("rule", one_in(3, sorted(IMPLIED_COMPACTED)))
def test_without_an_implied_rule_of_compacted_logs_nothing_is_found(rule: str):
    found = search(of_compacted(COMPACTED_ALL, rule), faults=1 + bool(FAULTS))
    assert not found.broken, str(found)


def test_every_rule_of_erasures_is_tried():
    tried = {row[0] for row in NEEDED} | set(IMPLIED) | {row[0] for row in SLOW}
    assert tried == set(Rules.__dataclass_fields__)
    tried = {row[0] for row in NEEDED_COMPACTED + SLOW_COMPACTED} | set(IMPLIED_COMPACTED)
    assert tried == set(compacted.Rules.__dataclass_fields__)
