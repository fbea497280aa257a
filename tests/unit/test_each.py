"""A test of many cases tries all of them, and a failure names those that failed."""

from __future__ import annotations

import pytest

from tests.each import each


def test_a_failure_names_its_cases_and_the_others_are_tried() -> None:
    tried = []

    @each("number", range(5), lambda number: f"number {number}")
    def test(number: int, limit: int) -> None:
        tried.append(number)
        if number == 1:
            pytest.fail("one")
        assert number < limit

    with pytest.raises(pytest.fail.Exception, match="one") as caught:
        test(limit=3)
    assert caught.value.__notes__ == ["failed with number: number 1, number 3, number 4"]
    assert tried == [0, 1, 2, 3, 4]


def test_no_cases_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="there is no page to test with"):
        each("page", [])
