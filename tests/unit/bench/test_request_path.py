"""Budgets of the paths of requests through a broker: what a reader must read, and calls. `make path` prints them."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from typing import Final

import msgspec
import pytest

from bench.request_path import REQUESTS, ROOT, RequestPath, c_files

DEFINING: Final = {
    "Produce, acks=1": (10, 2_955, 29),
    "Produce, acks=all, three replicas": (23, 6_320, 280),
    "Fetch, records there": (10, 2_820, 32),
    "OffsetCommit": (26, 5_220, 61),
    "DeleteRecords, one replica": (14, 3_550, 104),
    "DeleteRecords, three replicas": (20, 5_415, 330),
}
"""Files, their lines, and calls at most, of the forms that define what requests mean. These numbers only fall; lines
also rise where two files become one."""

SHORT: Final = {
    "Produce, acks=1": (14, 3_540, 27),
    "Fetch, records there": (15, 4_010, 29),
}
"""The same for the short forms, with their files in C."""


@functools.cache
def paths(pure: str) -> dict[str, RequestPath]:
    """Returns the paths of all requests, traced by a process with or without compiled code."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.request_path", "--json"],
        cwd=ROOT,
        env=os.environ | {"LOWTIDE_PURE": pure},
        capture_output=True,
        check=True,
    )
    calls = msgspec.json.decode(ran.stdout, type=dict[str, tuple[tuple[str, str], ...]])
    return {name: RequestPath(of_name) for name, of_name in calls.items()}


def check(path: RequestPath, budget: tuple[int, int, int]) -> None:
    files, lines, calls = budget
    assert len(path.files) <= files, path.files
    assert path.lines <= lines, path.files
    assert len(path.calls) <= calls, path.calls


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_keeps_to_its_budget(name: str) -> None:
    """Protects the paths from additional calls, and readers from additional files."""
    check(paths("1")[name], DEFINING[name])


@pytest.mark.parametrize("name", SHORT)
def test_a_short_form_keeps_to_its_budget(name: str) -> None:
    check(paths("")[name], SHORT[name])


def test_c_counts() -> None:
    """A function of the compiled module counts with the C files of the functions that it calls."""
    assert {"protocol/native/produces.c", "protocol/native/produce.c"} < set(c_files()["read_produce"])
    assert "protocol/native/produces.c" in paths("")["Produce, acks=1"].files


@pytest.mark.parametrize(
    ("name", "places"),
    [
        (
            "Produce, acks=1",
            [
                ("broker/network/connection/connection.py", "_execute"),
                ("storage/log/log.py", "append_"),
                ("storage/log/segments/segment.py", "write"),
            ],
        ),
        (
            "Fetch, records there",
            [
                ("broker/partitions/fetch/fetch_reader.py", "read"),
                ("storage/log/log.py", "read"),
                ("broker/network/connection/answers.py", "flush"),
            ],
        ),
        (
            "DeleteRecords, three replicas",
            [("storage/log_start/journal.py", ""), ("replication/leadership.py", ""), ("replication/purgatory.py", "")],
        ),
    ],
)
def test_the_trace_covers_the_path(name: str, places: list[tuple[str, str]]) -> None:
    """If nothing were traced, every budget would be kept."""
    calls = paths("1")[name].calls
    for file, function in places:
        assert any(at == file and function in called for at, called in calls), (file, function)


def test_moves_are_changes_of_file() -> None:
    path = RequestPath((("a", "1"), ("b", "2"), ("b", "3"), ("a", "4"), ("c", "5")))
    assert (path.files, path.moves, path.moves_back) == (("a", "b", "c"), 3, 1)
