"""Log starts and ends: no truncation, power cut or election returns a deleted record or loses another."""

from __future__ import annotations

import os

import pytest

from tests.examples import one_in

from .log_ends import CUT, MOVE, UNCLEAN, LogEnds, Rules
from .search import search

FAULTS = int(os.environ.get("FAULTS", "0"))
ALL = frozenset((CUT, UNCLEAN, MOVE))
LONELY = ((True, False),)


def test_starts_and_ends_are_consistent():
    """Every state with two faults of any kind; with three, and twelve times the states, by `make model FAULTS=3`."""
    found = search(LogEnds(Rules(), ALL), faults=max(FAULTS, 2))
    assert not found.broken, str(found)
    assert found.states > 50_000


NEEDED = [
    ("rise_lifts_high_watermark", 1, {CUT}, "D6", 5),
    ("follower_below_the_start_is_reset", 0, set(), "D6", 6),
    ("follower_at_the_start_is_reset", 2, {CUT, MOVE}, "R1", 11),
    ("truncation_is_journalled_first", 2, {CUT, UNCLEAN}, "D5", 7),
    ("truncation_ends_a_rise", 2, {CUT, MOVE}, "D6", 11),
    ("diverging_answer_only_truncates", 1, {MOVE}, "P1", 5),
    ("load_lifts_end", 1, {CUT}, "D6", 5),
    ("deletes_keep_last_epoch", 2, {CUT, UNCLEAN}, "D7", 9),
    ("isr_needs_deletes", 1, {CUT}, "D8", 9),
    ("isr_needs_records", 1, {CUT}, "R1", 3),
    ("isr_needs_match", 2, {CUT, MOVE}, "R1", 9),
    ("isr_of_this_registration", 2, {CUT}, "R1", 5),
    ("high_watermark_counts_isr", 1, {CUT}, "R1", 2),
]


@pytest.mark.parametrize(
    ("rule", "faults", "kinds", "harm", "steps"), one_in(3, NEEDED), ids=[row[0] for row in NEEDED]
)
def test_each_rule_of_logs_is_needed(rule: str, faults: int, kinds: set[str], harm: str, steps: int):
    first = LONELY if UNCLEAN in kinds else ((True, True), (True, False))
    found = search(LogEnds(Rules(**{rule: False}), frozenset(kinds), first), faults=faults)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)


def test_every_rule_of_logs_is_tried():
    assert {row[0] for row in NEEDED} == set(Rules.__dataclass_fields__)
