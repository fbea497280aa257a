"""Budgets of the paths of requests through a broker: files that a reader opens, and calls. `make path` prints them.

They fall; only lines rise, where a path has another step that saves calls.
"""

from __future__ import annotations

from typing import Final

import pytest

from bench.request_path import REQUESTS, RequestPath, request_path
from lowtide.protocol import native

BUDGETS = {
    "Produce, acks=1": (10, 2_850, 26),
    "Produce, acks=all, three replicas": (28, 7_700, 356),
    "Fetch, records there": (12, 3_550, 34),
    "OffsetCommit": (28, 6_250, 72),
    "DeleteRecords, one replica": (19, 4_800, 106),
    "DeleteRecords, three replicas": (28, 7_400, 381),
}
"""Files, their lines, and calls: a few more of these than today's, for other versions of Python."""

PLAIN: Final = {
    "Produce, acks=1": (16, 4_150, 39),
    "Produce, acks=all, three replicas": (33, 8_850, 381),
    "Fetch, records there": (14, 3_850, 39),
    "OffsetCommit": (30, 6_550, 78),
    "DeleteRecords, one replica": (21, 5_150, 111),
    "DeleteRecords, three replicas": (29, 7_550, 386),
}
"""The same without the compiled module: decoder, validator, records and encoder."""


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_keeps_to_its_budget(name: str) -> None:
    """Protects the hot paths from additional calls, and readers from additional files."""
    path = request_path(name)
    files, lines, calls = BUDGETS[name] if native.compiled is not None else PLAIN.get(name, BUDGETS[name])
    assert len(path.files) <= files, path.files
    assert path.lines <= lines, path.files
    assert len(path.calls) <= calls, path.calls


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
                ("broker/partitions/fetch/usual_fetch.py", "read"),
                ("storage/log/log.py", "read"),
                ("broker/network/connection/outgoing.py", ""),
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
    calls = request_path(name).calls
    for file, function in places:
        assert any(at == file and function in called for at, called in calls), (file, function)


def test_moves_are_changes_of_file() -> None:
    path = RequestPath((("a", "1"), ("b", "2"), ("b", "3"), ("a", "4"), ("c", "5")))
    assert (path.files, path.moves, path.moves_back) == (("a", "b", "c"), 3, 1)
