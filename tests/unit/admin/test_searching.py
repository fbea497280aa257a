"""A search returns exactly the first records in its order that meet the conditions, and a later one goes on after it.

Offsets are not a number of records: compacted and transactional logs have gaps, and records may be large.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.admin import search_walk
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.offsets import OffsetSpec, Timestamp
from lowtide.admin.search_conditions import Conditions, header_condition
from lowtide.admin.search_expression import Expression
from lowtide.admin.searching import Search, SearchEnd, SearchLimits, SearchRequest
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ErrorCode

from .searched_log import TOPIC, Log, LogClient

BATCHES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, 0, 0, 1, 7, 500, 10**6]),
        st.integers(1, 20),
        st.sampled_from([0, 10, 3000, 90_000]),
    ),
    max_size=14,
)
"""Partition, gap before it, records, bytes of each."""


def topic_of(batches: Sequence[tuple[int, int, int, int]]) -> LogClient:
    """Times ascend through all partitions, so the merge is exact."""
    logs, now_ms = {number: Log() for number in range(3)}, 1000
    for number, gap, count, size in batches:
        logs[number].append([(now_ms + each, None, os.urandom(size), ()) for each in range(count)], gap)
        now_ms += count
    return LogClient(logs)


def run(client: LogClient, **request: Any) -> Search:
    search = Search(client, SearchRequest(topic=TOPIC, **request))
    reported: list[Any] = []

    async def keep(hits: Sequence[Any]) -> None:
        reported.extend(hits)

    asyncio.run(search.run(keep))
    assert set(places(search)) <= {(each.partition, each.row.offset) for each in reported}
    return search


def places(search: Search) -> list[tuple[int, int]]:
    return [(each.partition, each.row.offset) for each in search.hits]


def everything(client: LogClient, *, backwards: bool) -> list[tuple[int, int]]:
    rows = [(at, number, offset) for number, log in client.logs.items() for offset, at in log.times.items()]
    return [(number, offset) for _, number, offset in sorted(rows, reverse=backwards)]


@given(BATCHES, st.integers(1, 40), st.booleans())
@settings(deadline=None)
def test_pages_have_every_record_once_and_in_order(batches: list[Any], count: int, backwards: bool):
    client = topic_of(batches)
    place: Any = OffsetSpec.LATEST if backwards else OffsetSpec.EARLIEST
    seen: list[tuple[int, int]] = []
    for _ in range(500):
        search = run(client, backwards=backwards, place=place, limits=SearchLimits(hits=count))
        seen += places(search)
        if search.end is SearchEnd.COMPLETE:
            break
        assert search.end is SearchEnd.HITS
        assert len(search.hits) == count
        place = search.next_offsets()
    assert seen == everything(client, backwards=backwards)


@given(BATCHES, st.integers(0, 3_000_000), st.integers(0, 3_000_000), st.booleans())
@settings(deadline=None)
def test_a_search_stays_between_its_places(batches: list[Any], first: int, last: int, backwards: bool):
    client = topic_of(batches)
    low, high = {0: first}, {0: last}
    search = run(
        client,
        partitions=(0,),
        backwards=backwards,
        place=high if backwards else low,
        until=low if backwards else high,
        limits=SearchLimits(hits=1000),
    )
    wanted = [offset for offset in sorted(client.logs[0].times, reverse=backwards) if first <= offset < last]
    assert [offset for _, offset in places(search)] == wanted


def test_pages_of_a_sparse_log_arrive_at_its_start():
    """A page was as many offsets as records were shown, and never arrived."""
    client = topic_of([(0, 9_999, 1, 10)] * 50)
    search = run(client, limits=SearchLimits(hits=20))
    assert places(search) == everything(client, backwards=True)[:20]
    assert client.fetches < 100


def test_a_gap_before_large_records_costs_few_reads():
    """The windows stayed as narrow as those of the large records, through a gap of a million offsets."""
    client = topic_of([(0, 10**6, 10, 90_000)])
    assert run(client).end is SearchEnd.COMPLETE
    assert client.fetches < 20


def test_large_records_are_fewer():
    client = topic_of([(0, 0, 1, 900_000)] * 60)
    search = run(client, limits=SearchLimits(hits=50, held_bytes=8 << 20))
    found = places(search)
    assert 5 <= len(found) < 50
    assert found == everything(client, backwards=True)[: len(found)], "the newest, without a gap"
    assert search.end is SearchEnd.HITS
    assert search.next_offsets()[0] == found[-1][1]
    assert client.fetched_bytes < 20 << 20


def test_a_delete_meanwhile_leaves_out_what_is_gone():
    client = topic_of([(0, 0, 5, 10)] * 5)
    answer = client.fetch_records

    async def fetch(*arguments: Any, **more: Any) -> Any:
        client.logs[0].start = 10
        return await answer(*arguments, **more)

    client.fetch_records = fetch
    search = run(client)
    assert [offset for _, offset in places(search)] == list(range(24, 9, -1))
    assert search.end is SearchEnd.COMPLETE


def conditions_topic(**settings: Any) -> LogClient:
    log = Log()
    log.append(
        [
            (1, b"k1", b'{"delay": 90, "carrier": "UA"}', ()),
            (2, b"k2", b'{"delay": 10, "carrier": "UA"}', [(b"source", b"EWR")]),
            (3, None, b"no JSON \xff", [(b"source", None)]),
            (4, b"k1", None, ()),
            (5, b"k1-longer", b"x" * 300_000 + b"EWR", ()),
        ],
        **settings,
    )
    return LogClient({0: log})


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize(
    ("conditions", "offsets"),
    [
        (Conditions(), [4, 3, 2, 1, 0]),
        (Conditions(text=b"UA"), [1, 0]),
        (Conditions(text=b"EWR"), [4]),
        (Conditions(text=b"k1"), [4, 3, 0]),
        (Conditions(text=b"absent"), []),
        (Conditions(text=b""), [4, 3, 2, 1, 0]),
        (Conditions(key=b"k1"), [3, 0]),
        (Conditions(key=b"k1", text=b"90"), [0]),
        (Conditions(header=header_condition("source")), [2, 1]),
        (Conditions(header=header_condition("source=EWR")), [1]),
        (Conditions(header=header_condition("source=")), []),
        (Conditions(where=Expression("delay > `60`")), [0]),
        (Conditions(where=Expression("carrier == 'UA'")), [1, 0]),
    ],
)
def test_all_conditions_must_be_met(conditions: Conditions, offsets: list[int], codec: Compression):
    search = run(conditions_topic(compression=codec), conditions=conditions)
    assert [offset for _, offset in places(search)] == offsets
    assert search.progress.hits == len(offsets)


def test_values_that_a_filter_cannot_see_are_counted():
    search = run(conditions_topic(), conditions=Conditions(where=Expression("delay")))
    assert (search.matcher.other_format_total, search.matcher.too_large_total) == (1, 1)


def test_a_damaged_batch_is_reported_and_left_out():
    log = Log()
    for each in range(3):
        log.append([(each, b"k", b"v", ())])
    damaged = bytearray(log.batches[1].content)
    damaged[-1] ^= 1
    log.batches[1] = log.batches[1]._replace(content=bytes(damaged))
    search = run(LogClient({0: log}))
    assert [offset for _, offset in places(search)] == [2, 0]
    assert search.progress.troubles == ["t-0: the batch at offset 1 can't be read: its CRC is wrong."]


def test_a_partition_that_fails_is_reported_and_left_out():
    client = topic_of([(0, 0, 3, 10), (1, 0, 3, 10)])
    client.failing[1] = BrokerAnsweredError(ErrorCode.KAFKA_STORAGE_ERROR, "t-1")
    search = run(client)
    assert {number for number, _ in places(search)} == {0}
    assert "t-1" in search.progress.troubles[0]


def test_an_unknown_topic_is_an_error():
    with pytest.raises(BrokerAnsweredError):
        asyncio.run(Search(topic_of([]), SearchRequest(topic="nope")).run(_ignore))


async def _ignore(_: object) -> None:
    """Waits for all."""


def test_a_search_begins_at_a_time():
    client = topic_of([(0, 0, 5, 10), (1, 0, 5, 10), (0, 0, 5, 10)])
    after = run(client, backwards=False, place=Timestamp(1003))
    assert places(after) == everything(client, backwards=False)[3:]
    before = run(client, place=Timestamp(1003))
    assert places(before) == everything(client, backwards=True)[-3:]


def test_a_limit_of_bytes_ends_a_search():
    client = topic_of([(0, 0, 20, 90_000)] * 10)
    search = run(
        client, conditions=Conditions(text=b"no random bytes are like this"), limits=SearchLimits(bytes_read=1)
    )
    assert search.end is SearchEnd.BYTES
    assert 0 < search.share < 1
    assert client.fetched_bytes < 4 * search_walk.WINDOW_BYTES_MAX


def test_a_slow_receiver_slows_the_search_and_a_cancelled_one_ends_it():
    client = topic_of([(0, 0, 20, 90_000)] * 10)
    search = Search(client, SearchRequest(topic=TOPIC, limits=SearchLimits(hits=200)))

    async def main() -> int:
        blocked = asyncio.Event()

        async def block(_: object) -> None:
            blocked.set()
            await asyncio.Event().wait()

        task = asyncio.get_running_loop().create_task(search.run(block))
        await blocked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return client.fetches

    assert asyncio.run(main()) < 5
    assert search.end is None


def test_the_loop_is_not_held():
    """Another task gets its turn after each slice."""
    log = Log()
    for _ in range(20):
        log.append([(1, b"k", b'{"n": [1, 2, 3]}', ())] * 1000)
    search = Search(
        LogClient({0: log}),
        SearchRequest(topic=TOPIC, conditions=Conditions(where=Expression("n[?@ > `9`]"))),
    )
    turns = 0

    async def main() -> None:
        nonlocal turns
        task = asyncio.get_running_loop().create_task(search.run(_ignore))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        await task

    asyncio.run(main())
    assert search.progress.records == 20_000
    assert turns > 100
