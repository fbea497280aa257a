"""In which order the tests are asked about a mutant."""

from __future__ import annotations

from tests.mutants.session import in_order


def test_tests_that_have_found_mutants_lately_come_first_then_the_cheapest():
    costs = {"dear": 3.0, "cheap": 0.1, "middle": 1.0, "as cheap": 0.1}
    assert in_order(costs, []) == ["as cheap", "cheap", "middle", "dear"]
    assert in_order(costs, ["middle", "dear"]) == ["dear", "middle", "as cheap", "cheap"], "the latest first"


def test_a_test_that_does_not_run_the_line_is_not_asked():
    assert in_order({"a": 2.0, "b": 1.0}, ["elsewhere", "a", "elsewhere"]) == ["a", "b"]
