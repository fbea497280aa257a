"""A reported log start is the same after every crash, and the result of a crash is never treated as damage."""

from __future__ import annotations

import pytest

from .journal import Journal, Rules
from .search import search


def test_a_reported_log_start_stays():
    found = search(Journal(Rules()), faults=4)
    assert not found.broken, str(found)
    assert found.states > 200


@pytest.mark.parametrize(
    ("rule", "faults", "harm", "steps"),
    [
        ("visible_when_durable", 1, "D5", 3),
        ("unlinked_when_durable", 0, "S5", 1),
        ("one_frame_under_way", 1, "S1", 4),
        ("last_counts", 1, "D7", 6),
        ("torn_end_is_dropped", 1, "S1", 3),
        ("written_anew_at_start", 2, "D5", 5),
        ("synced_before_rename", 1, "S1", 4),
        ("directory_synced_after_rename", 1, "D5", 7),
    ],
)
def test_each_rule_of_the_journal_is_needed(rule: str, faults: int, harm: str, steps: int):
    found = search(Journal(Rules(**{rule: False})), faults=faults)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)


def test_every_rule_is_tried():
    marks = [mark for mark in test_each_rule_of_the_journal_is_needed.pytestmark if mark.name == "parametrize"]
    assert {row[0] for row in marks[0].args[1]} == set(Rules.__dataclass_fields__)
