"""Patterns of clients: RE2's syntax, whole names, and none that blocks the loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lowtide.broker.coordinator.modern.subscription_patterns import (
    PATTERN_BYTES_MAX,
    NamePattern,
    PatternError,
    check_pattern,
)
from lowtide.protocol.errors import ErrorCode

INVALID = ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        ("orders", ["orders"], ["orders-eu", "my-orders", "Orders", ""]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("a|ab", ["a", "ab"], ["abc", "b"]),
        (r"team-\d+\.(in|out)", ["team-1.in", "team-22.out"], ["team-.in", "team-1xin", "team-1.in2"]),
        ("(?i)Orders", ["orders", "ORDERS"], ["order"]),
        (r"\Qa.b\E", ["a.b"], ["axb"]),
        (r"\p{Lu}.?", ["Ä", "Äb"], ["ä"]),
        ("", [""], ["a"]),
    ],
)
def test_a_pattern_means_a_whole_name(text: str, matching: list[str], others: list[str]):
    pattern = NamePattern(text)
    assert check_pattern(text) == ErrorCode.NONE
    assert [name for name in [*matching, *others] if pattern.matches(name)] == matching


@pytest.mark.parametrize("text", ["[a", "a(", "a)", "*a", "(?=a)b", r"(a)\1", "(?<!a)b", "a{1001}", "\ud800"])
def test_an_invalid_pattern_of_re2_is_refused(text: str):
    assert check_pattern(text) == INVALID
    with pytest.raises(PatternError, match=r"\w"):
        NamePattern(text)


@pytest.mark.parametrize(
    "text",
    [
        r"\p{L}{500}",
        "(.{1,30}){1,30}",
        "(?:.?){1000}",
        "((a{100}){100}){100}",
        "a" * (PATTERN_BYTES_MAX + 1),
        "(" * 5000,
    ],
)
def test_a_pattern_that_grows_is_refused(text: str):
    assert check_pattern(text) == INVALID


def test_the_longest_list_of_names_is_accepted():
    names = [f"{number:04}" + "x" * 36 for number in range(PATTERN_BYTES_MAX // 41)]
    pattern = NamePattern("|".join(names))
    assert all(pattern.matches(name) for name in names)
    assert not pattern.matches(names[0] + "x")


def test_the_longest_pattern_is_accepted():
    assert check_pattern("a" * PATTERN_BYTES_MAX) == ErrorCode.NONE
    assert check_pattern("ä" * (PATTERN_BYTES_MAX // 2 + 1)) == INVALID


def test_a_pattern_is_kept_as_the_client_sent_it():
    assert NamePattern("a|b").text == "a|b"


def test_an_invalid_pattern_writes_nothing_to_the_standard_error(capfd: pytest.CaptureFixture[str]):
    """RE2 would write there what a client sent."""
    check_pattern("a(")
    assert capfd.readouterr().err == ""


def test_each_step_has_as_many_names_as_the_pattern_allows():
    pattern = NamePattern("topic-.*")
    names = ["topic-1"] * (2 * pattern.step_names + 1)
    assert len(list(pattern.matching(names))) == 2
    assert len(list(pattern.matching(names[1:]))) == 2
    assert len(list(pattern.matching(names[2:]))) == 1


def test_many_names_are_matched_in_steps():
    names = [f"topic-{number}" for number in range(10_000)]
    steps = NamePattern("topic-.*7").matching(names)
    count = 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            count += 1
    assert end.value.value == [name for name in names if name.endswith("7")]
    assert count > 10


def test_the_larger_a_pattern_the_shorter_its_steps():
    """This pattern makes RE2 compare each character of a name with thousands of instructions."""
    assert NamePattern("(?:a?.?b?){330}zz").step_names == 1
    assert NamePattern("topic-.*").step_names > 100


def test_the_package_is_imported_only_by_the_first_pattern():
    """An import at the start would cost each broker without patterns 8 ms and 3 MB."""
    program = """
import sys
import lowtide.cli.main, lowtide.broker.lifecycle.broker
from lowtide.broker.coordinator.modern.subscription_patterns import check_pattern
assert "re2" not in sys.modules
check_pattern("a")
assert "re2" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
