"""Partitions, times and offsets on the command line: parsed strictly, because deletes use them."""

from __future__ import annotations

import pytest

from lowtide.admin.deletion import Committed
from lowtide.admin.offsets import Timestamp
from lowtide.admin.wanted_offsets import parse_offset, parse_partitions, parse_time
from lowtide.cli.delete_plan import in_words, target_of
from lowtide.cli.outcome import CommandError, ExitCode


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("t", ("t", None)),
        ("t:0", ("t", [0])),
        ("a.b_c-1:3,1-2, 2", ("a.b_c-1", [1, 2, 3])),
        ("t:2147483647", ("t", [2**31 - 1])),
    ],
)
def test_partitions(text, meant):
    assert parse_partitions(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a b", "t:", "t:-1", "t:2-1", "t:x", "t:1,,2", "t:2147483648", "t:0-1000000", "t:1-2-3", "t\n", "é"],
)
def test_an_invalid_partition_is_refused(text):
    with pytest.raises(ValueError, match="is not a (partition|topic name): "):
        parse_partitions(text)


@pytest.mark.parametrize(
    ("text", "meant_ms"),
    [
        ("1793491200000", 1_793_491_200_000),
        ("2026-11-01T00:00:00Z", 1_793_491_200_000),
        ("2026-11-01T02:00:00+02:00", 1_793_491_200_000),
        ("2026-11-01 00:00:00.5Z", 1_793_491_200_500),
    ],
)
def test_times(text, meant_ms):
    assert parse_time(text) == meant_ms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-11-01T00:00:00", "has no time zone"),
        ("2026-11-01", "has no time zone"),
        ("1793491200", "is not a time in milliseconds"),
        ("yesterday", "is not a time: write ISO 8601"),
        ("-5", "is not a time"),
        ("1960-01-01T00:00:00Z", "is before 1970"),
        ("9" * 30, "is not a time in milliseconds"),
        ("", "is not a time"),
    ],
)
def test_a_time_that_is_ambiguous_is_refused(text, reason):
    """Seconds for milliseconds, local time for UTC."""
    with pytest.raises(ValueError, match=reason):
        parse_time(text)


def test_offsets():
    assert (parse_offset("0"), parse_offset("42"), parse_offset("end"), parse_offset(str(2**63 - 1))) == (
        0,
        42,
        -1,
        2**63 - 1,
    )


@pytest.mark.parametrize("text", ["-1", "1.5", "", "END", "9223372036854775808", "٣", "9" * 100])
def test_an_invalid_offset_is_refused(text):
    """-1 too: it may be the result of a computation."""
    with pytest.raises(ValueError, match="is not an offset"):
        parse_offset(text)


def test_one_target_is_required():
    assert target_of("12", None, []) == 12
    assert target_of(None, "1793491200000", []) == Timestamp(1_793_491_200_000)
    assert target_of(None, None, ["a", "b"]) == Committed(["a", "b"])
    for arguments in ((None, None, []), ("1", "1793491200000", []), ("1", None, ["g"]), (None, None, [""])):
        with pytest.raises(CommandError) as refused:
            target_of(*arguments)
        assert refused.value.code is ExitCode.MISUSED


def test_targets_in_words():
    assert in_words(12) == "all records below offset 12"
    assert in_words(-1) == "all records"
    assert in_words(Timestamp(0)) == "all records before the first one of 1970-01-01T00:00:00.000Z or later"
    assert in_words(Committed("g")) == "all records that g has consumed"
    assert in_words(Committed(["g", "h"])) == "all records that g and h have all consumed"
