"""Filters in JMESPath: what is true, what is refused with a reason, and how much work a value may take."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.admin.search_expression import LENGTH_MAX, STEPS_MAX, Expression, TooMuchWorkError

VALUE = {"delay": 90, "zero": 0, "carrier": "UA", "legs": [{"from": "EWR"}, {"from": "LGA"}], "none": None, "t": "x"}


@pytest.mark.parametrize(
    ("text", "is_true"),
    [
        ("delay", True),
        ("zero", True),
        ("none", False),
        ("missing", False),
        ("delay > `60` && carrier == 'UA'", True),
        ("delay > `90` || carrier == 'AA'", False),
        ("legs[?from == 'LGA']", True),
        ("legs[?from == 'JFK']", False),
        ("length(legs) == `2`", True),
        ("contains(carrier, 'U')", True),
        ("starts_with(missing, 'U')", False),
        ("t < `1`", False),
        ("legs[::0]", False),
        ("join('-', legs[].from) == 'EWR-LGA'", True),
        ("[delay, zero]", True),
        ("sort_by(legs, &from)[0].from == 'EWR'", True),
    ],
)
def test_what_is_true(text: str, is_true: bool):
    assert Expression(text).is_true(VALUE) is is_true
    assert not Expression("missing").is_true([1])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("delay >", "it ends too early"),
        ("a b", "'b' is unexpected at character 3"),
        ("$.a", "unknown token $"),
        ("'x", "unclosed ' delimiter"),
        ("", "the filter is empty"),
        ("nope(@)", "calls the unknown function nope()"),
        ("length()", "calls length() with 0 arguments instead of 1"),
        ("a.length(@, @)", "calls length() with 2 arguments instead of 1"),
        ("merge()", "calls merge() with 0 arguments instead of at least 1"),
        ("a" * (LENGTH_MAX + 1), f"at most {LENGTH_MAX} are allowed"),
        ("!" * 900, "is nested too deeply"),
        ("(" * 900 + "a", "is nested too deeply"),
        ("[@,@]|[@,@]|[@,@]|[@,@]", "repeats the value too often"),
        ("{a: @, b: @}.{a: @, b: @}.{a: @, b: @}.{a: @, b: @}", "repeats the value too often"),
    ],
)
def test_what_is_refused_has_a_reason(text: str, reason: str):
    with pytest.raises(ValueError, match=".") as caught:
        Expression(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("items[?n > `1`]", {"items": [{"n": 0}] * STEPS_MAX}),
        ("items[].n", {"items": [[{"n": 0}]] * STEPS_MAX}),
        ("join(s, l)", {"s": "x" * 50_000, "l": ["y"] * 5_000}),
        ("sort(l)", {"l": list(range(50_000))}),
        ("map(&n, @)", [{"n": 0}] * STEPS_MAX),
    ],
)
def test_the_work_for_a_value_is_bounded(text: str, value: Any):
    with pytest.raises(TooMuchWorkError):
        Expression(text).is_true(value)


def test_an_expression_is_in_no_log():
    assert repr(Expression("name == 'Alice'")) == "Expression()"
