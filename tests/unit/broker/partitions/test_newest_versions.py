"""A search of a compacted log that names the newest versions of keys, which an erasure by offset would refuse."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import FoundPartition

from .leading import NONE, Leading, simulate
from .test_find_records import find, offsets, produce


async def start(world: Leading, **configs: Any) -> int:
    """Returns the offset of the first of six records."""
    await world.start()
    await world.create_topic("t", (1,), **configs)
    return await produce(world, b"a", b"b", b"a", b"c", b"b", b"d")


def newest(row: FoundPartition) -> list[tuple[int, int]]:
    return [(each.first_offset, each.last_offset) for each in row.newest]


def test_a_search_names_the_newest_versions_of_keys() -> None:
    """Protects tables from losing a key by mistake: a rehearsal says what the erasure would refuse."""

    async def run(world: Leading) -> None:
        at = await start(world, cleanup_policy="compact")
        row = await find(world, offsets=((at, at + 3),), names_newest=True)
        assert (offsets(row), newest(row)) == ([(at, at + 3)], [(at + 2, at + 3)])
        row = await find(world, offsets=((at, at + 1),), names_newest=True, search_id=b"1" * 16)
        assert (offsets(row), newest(row)) == ([(at, at + 1)], [])
        row = await find(world, header_name=b"who", header_value=b"d", names_newest=True, search_id=b"2" * 16)
        assert (offsets(row), newest(row)) == ([(at + 5, at + 5)], [(at + 5, at + 5)])
        assert row.searched_bytes == row.total_bytes > 0

    simulate(run)


@pytest.mark.parametrize(
    ("configs", "fields"),
    [
        ({"cleanup_policy": "delete"}, {"names_newest": True}),
        ({"cleanup_policy": "compact"}, {}),
    ],
    ids=["not compacted", "not wanted"],
)
def test_only_searches_of_compacted_logs_that_ask_name_them(configs: dict[str, Any], fields: dict[str, Any]) -> None:
    """Protects the cost of other searches, and topics in which every record stays."""

    async def run(world: Leading) -> None:
        at = await start(world, **configs)
        row = await find(world, offsets=((at, at + 5),), **fields)
        assert (offsets(row), newest(row)) == ([(at, at + 5)], [])

    simulate(run)


def test_a_request_that_comes_too_early_waits_for_both_searches() -> None:
    """Protects from an answer without the newest versions, and a client that asks again."""

    async def run(world: Leading) -> None:
        at = await start(world, cleanup_policy="compact")
        wanted: dict[str, Any] = {"offsets": ((at, at + 5),), "names_newest": True}
        for _ in range(100):
            row = await find(world, timeout_ms=0, **wanted)
            if row.error_code == NONE:
                break
            assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        row = await find(world, **wanted)
        assert newest(row) == [(at + 2, at + 5)]

    simulate(run)
