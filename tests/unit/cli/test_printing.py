"""Output of commands: tables of minimal width, readable numbers and times, and no control characters."""

from __future__ import annotations

import pytest

from lowtide.cli.printing import moment, plural, print_table, printable, progress, table


def test_a_table_is_as_wide_as_necessary():
    """Numbers are right-aligned, a missing value is a dash, and no line ends in blanks."""
    rows = [("flights", 12, None), ("delays-by-carrier", 3, "x")]
    assert table(["topic", "partitions", "note"], rows) == [
        "topic              partitions  note",
        "flights                    12  -",
        "delays-by-carrier           3  x",
    ]


def test_a_table_without_rows_has_its_head():
    assert table(["topic", "partitions"], []) == ["topic  partitions"]


def test_a_pipe_gets_whole_lines(capsys):
    """Lines may have any length: a program that reads them has no terminal width."""
    print_table(["group"], [("g" * 300,)])
    assert capsys.readouterr().out == f"group\n{'g' * 300}\n"


def test_names_cannot_control_a_terminal():
    """Group ids may have any characters."""
    assert table(["group"], [("a\x1b[2Jb\n",)])[1] == "a\\x1b[2Jb\\n"
    assert printable("caf\u00e9 \u202e") == "caf\u00e9 \\u202e"


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_times(time_ms, text):
    """Any 64 bits: records have the timestamps of their producers."""
    assert moment(time_ms) == text


def test_counts():
    assert (plural(1, "record"), plural(12_345, "record")) == ("1 record", "12,345 records")


def test_progress_is_for_terminals_only(capsys):
    """Logs of scheduled jobs stay readable."""
    with progress("sweeping", 10) as shown:
        shown.advance(10)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
