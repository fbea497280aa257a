"""A directory that lost deletes is detected, and no other is refused, whenever a registration stops."""

from __future__ import annotations

import pytest

from .registration import Registration, Rules
from .search import search


def test_no_lost_directory_is_elected_and_no_good_one_refused():
    found = search(Registration(Rules()), faults=4)
    assert not found.broken, str(found)
    assert found.states > 500


@pytest.mark.parametrize(
    ("rules", "faults", "harm", "steps"),
    [
        (Rules(compares=False), 1, "D1", 5),
        (Rules(marked_with_registration=False), 1, "D1", 4),
        (Rules(marked_before_number=False), 2, "D1", 8),
        (Rules(mark_stays=False), 1, "D1", 9),
        (Rules(number_is_drawn=False), 2, "D1", 13),
        (Rules(directory_before_store=False), 1, "S1", 6),
    ],
    ids=[
        "directory and store are compared",
        "mark with registration",
        "mark before number",
        "the mark stays",
        "a drawn number",
        "directory first",
    ],
)
def test_each_step_is_needed_in_its_place(rules: Rules, faults: int, harm: str, steps: int):
    found = search(Registration(rules), faults=faults)
    print(found)
    assert found.broken.startswith(harm), str(found)
    assert found.length == steps, str(found)
