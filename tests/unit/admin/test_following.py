"""A follower gets new records, the newest of many, and is told how many it did not get."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from lowtide.admin import following
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.admin.following import BEHIND_MAX, Follow, FollowRequest, FollowRound
from lowtide.admin.search_conditions import Conditions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition

from .searched_log import TOPIC, Log, LogClient


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> LogClient:
    """Two partitions, each with one old record."""
    logs = {0: Log(), 1: Log()}
    for log in logs.values():
        log.append([(1, b"k", b"old", ())])
    client = LogClient(logs)

    async def fetch_each(_: object, offsets: Mapping[TopicPartition, int], terms: Any) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = {}
        for key, offset in offsets.items():
            try:
                found[key] = await client.fetch_records(key, offset, max_bytes=terms.max_bytes)
            except AdminError as error:
                found[key] = error
        return found

    monkeypatch.setattr(following, "fetch_each", fetch_each)
    return client


def begun(client: Any, **request: Any) -> Follow:
    follow = Follow(client, FollowRequest(topic=TOPIC, **request))
    asyncio.run(follow.begin())
    return follow


def values(found: FollowRound) -> list[tuple[int, Any]]:
    return [(hit.partition, hit.row.value) for hit in found.hits]


def test_new_records_come_in_the_order_of_time(client: LogClient):
    follow = begun(client)
    assert values(asyncio.run(follow.round())) == []
    client.logs[1].append([(5, None, b"b", ()), (9, None, b"d", ())])
    client.logs[0].append([(3, None, b"a", ()), (7, None, b"c", ())])
    found = asyncio.run(follow.round())
    assert values(found) == [(0, b"a"), (1, b"b"), (0, b"c"), (1, b"d")]
    assert (found.skipped, follow.offsets, follow.records) == (0, {0: 3, 1: 3}, 4)
    assert values(asyncio.run(follow.round())) == []


def test_a_page_that_comes_back_goes_on(client: LogClient):
    assert values(asyncio.run(begun(client, offsets={0: 0, 7: 3}).round())) == [(0, b"old")]


def test_only_records_that_meet_the_conditions_count(client: LogClient):
    follow = begun(client, conditions=Conditions(text=b"x"))
    client.logs[0].append([(3, None, b"a", ()), (7, None, b"x", ())])
    found = asyncio.run(follow.round())
    assert (values(found), found.skipped) == ([(0, b"x")], 0)


def test_the_newest_of_many_are_shown_and_the_others_counted(client: LogClient):
    follow = begun(client, rows=10)
    client.logs[0].append([(3 + n, None, b"%d" % n, ()) for n in range(25)])
    found = asyncio.run(follow.round())
    assert values(found) == [(0, b"%d" % n) for n in range(15, 25)]
    assert found.skipped == 15


def test_a_follower_far_behind_skips_to_the_end(client: LogClient):
    follow = begun(client)
    client.logs[0].append([(3, None, b"next", ())])
    client.logs[0].append([(4, None, b"x" * 300_000, ())], gap=BEHIND_MAX)
    found = asyncio.run(follow.round())
    assert values(found) == [(0, b"next")]
    assert found.skipped == BEHIND_MAX + 1
    assert follow.offsets[0] == client.logs[0].end


def test_deleted_records_are_left_out(client: LogClient):
    follow = begun(client)
    client.logs[0].append([(3, None, b"a", ()), (7, None, b"b", ())])
    client.logs[0].start = client.logs[0].end
    assert asyncio.run(follow.round()).skipped == 2
    client.logs[0].append([(9, None, b"c", ())])
    assert values(asyncio.run(follow.round())) == [(0, b"c")]


def test_a_partition_that_fails_is_reported_and_all_that_fail_are_an_error(client: LogClient):
    follow = begun(client)
    client.failing[0] = BrokerAnsweredError(ErrorCode.KAFKA_STORAGE_ERROR, "t-0")
    client.logs[1].append([(3, None, b"a", ())])
    found = asyncio.run(follow.round())
    assert (values(found), len(found.troubles)) == ([(1, b"a")], 1)
    client.failing[1] = BrokerAnsweredError(ErrorCode.KAFKA_STORAGE_ERROR, "t-1")
    with pytest.raises(BrokerAnsweredError):
        asyncio.run(follow.round())
