"""A Fetch of very many partitions stays bytes: only partitions that are here become objects, and sessions stay whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from lowtide.broker.guards.large_fetch import AWAY_MAX
from lowtide.broker.partitions.fetch_session import FetchSession
from lowtide.broker.partitions.fetch_session_cache import FetchSessionCache
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchTopic, ForgottenTopic
from lowtide.simulation.client import WireClient

from .test_large_fetch import fetch, held, one_record_each, told, watchers
from .test_slow_produce import PARTITIONS, SMALL, World, produce, rows, simulate

VERSION = 12
ALL = range(PARTITIONS + AWAY_MAX + 500)
"""Those of the topic, and others that it hasn't."""

ABSENT = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, 0)


class Sessions:
    """All that brokers of a test have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.caches: list[FetchSessionCache] = []
        begin = FetchSessionCache.__init__

        def noted(cache: FetchSessionCache, *arguments: Any) -> None:
            begin(cache, *arguments)
            self.caches.append(cache)

        monkeypatch.setattr(FetchSessionCache, "__init__", noted)

    def __len__(self) -> int:
        return len(self.caches[-1])

    def find(self, session_id: int) -> FetchSession:
        session = self.caches[-1].by_id.get(session_id)
        assert session is not None
        return session


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Sessions:
    return Sessions(monkeypatch)


def expected(
    partitions: range, there: tuple[int, int, int] = (ErrorCode.NONE, 1, len(SMALL))
) -> dict[int, tuple[int, int, int]]:
    return {number: there if number < PARTITIONS else ABSENT for number in partitions}


@pytest.mark.parametrize("version", [4, 6, 7, 12])
def test_every_row_is_answered_in_its_order(version: int) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        answer = await client.request(fetch(partitions=ALL), version)
        assert told(answer) == expected(ALL)
        assert [row.partition_index for topic in answer.responses for row in topic.partitions] == list(ALL)
        assert len(answer.responses) == 1
        assert held(world) == 0

    simulate(run)


def test_topics_go_by_their_ids() -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        assert world.broker is not None
        assert world.broker.replicas is not None
        assert world.broker.replicas.image is not None
        topic_id = world.broker.replicas.image.topics["t"].topic_id
        named = [replace(topic, topic="", topic_id=topic_id) for topic in fetch(partitions=ALL).topics]
        unknown = [FetchTopic(topic_id=bytes([9] * 16), partitions=named[0].partitions[:3])]
        answer = await client.request(replace(fetch(), topics=unknown + named), 13)
        assert [(topic.topic_id, len(topic.partitions)) for topic in answer.responses] == [
            (bytes([9] * 16), 3),
            (topic_id, len(ALL)),
        ]
        assert {row.error_code for row in answer.responses[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert told(replace(answer, responses=answer.responses[1:])) == expected(ALL)

    simulate(run)


def test_of_a_partition_named_twice_the_last_row_counts() -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        request = fetch(5, partitions=ALL)
        request.topics[0].partitions += fetch(0, partitions=range(3)).topics[0].partitions
        answer = await client.request(request, 6)
        assert [row.partition_index for topic in answer.responses for row in topic.partitions] == list(ALL)
        assert told(answer) == {
            number: row if number < 3 else (ErrorCode.OFFSET_OUT_OF_RANGE, -1, 0)
            for number, row in expected(range(PARTITIONS)).items()
        } | expected(range(PARTITIONS, len(ALL)))

    simulate(run)


@pytest.mark.parametrize("ends", ["record", "deadline", "close"])
def test_it_waits_for_what_is_here(ends: str) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        other = await world.connect()
        began = world.loop.time()
        waits = client.send(fetch(1, wait_ms=5_000, partitions=ALL), 6)
        await asyncio.sleep(2)
        assert held(world) > PARTITIONS
        assert watchers(world) == PARTITIONS
        if ends == "record":
            assert rows(await other.request(produce(SMALL), 9)) == [(ErrorCode.NONE, 1)]
            assert told(await waits) == expected(ALL, (ErrorCode.NONE, 1, 0)) | {0: (ErrorCode.NONE, 2, len(SMALL))}
            assert world.loop.time() - began < 5
        elif ends == "deadline":
            assert told(await waits) == expected(ALL, (ErrorCode.NONE, 1, 0))
            assert world.loop.time() - began >= 5
        else:
            assert world.broker is not None
            assert world.broker.serving.host is not None
            world.broker.serving.host.abort_connections()
            with pytest.raises(ConnectionError):
                await waits
            await asyncio.sleep(0.1)
        assert (held(world), watchers(world)) == (0, 0)

    simulate(run)


@pytest.mark.parametrize("field", ["max_bytes", "isolation_level", "partition_max_bytes"])
@pytest.mark.parametrize("version", [6, 12])
def test_limits_that_mean_nothing_are_refused_in_each_row_or_at_once(field: str, version: int) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        request = fetch(partitions=ALL)
        if field == "partition_max_bytes":
            request.topics[0].partitions[-1].partition_max_bytes = -1
        else:
            request = replace(request, **{field: -1})
        answer = await client.request(request, version)
        if version == 12:
            assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_REQUEST, [])
        else:
            assert told(answer) == dict.fromkeys(ALL, (ErrorCode.INVALID_REQUEST, -1, 0))

    simulate(run)


def test_a_session_is_declined_where_most_is_elsewhere(sessions: Sessions) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        declined = await client.request(fetch(session_epoch=0, partitions=ALL), VERSION)
        assert (declined.session_id, told(declined)) == (0, expected(ALL))
        few = range(PARTITIONS + AWAY_MAX)
        opened = await client.request(fetch(session_epoch=0, partitions=few), VERSION)
        assert opened.session_id != 0
        assert told(opened) == expected(few)
        assert len(sessions) == 1

    simulate(run)


async def opened_session(client: WireClient) -> int:
    opened = await client.request(fetch(1, session_epoch=0), VERSION)
    assert opened.session_id
    session_id: int = opened.session_id
    return session_id


def test_a_session_is_changed_by_very_many_rows(sessions: Sessions) -> None:
    """Added, and forgotten."""

    async def run(world: World) -> None:
        client = await one_record_each(world)
        session_id = await opened_session(client)
        added = range(PARTITIONS, PARTITIONS + AWAY_MAX)
        moved = range(PARTITIONS + AWAY_MAX)
        answer = await client.request(fetch(session_id=session_id, session_epoch=1, partitions=moved), VERSION)
        assert told(answer) == expected(moved)
        gone = fetch(1, session_id=session_id, session_epoch=2, partitions=range(PARTITIONS), forget=added)
        gone.forgotten_topics_data.append(ForgottenTopic(topic="other", partitions=list(range(200))))
        assert told(await client.request(gone, VERSION)) == {}
        assert len(sessions.find(session_id).targets) == PARTITIONS

    simulate(run)


def test_a_session_that_would_get_too_much_that_is_elsewhere_is_closed(sessions: Sessions) -> None:
    """Its client starts over, and is answered without a session."""

    async def run(world: World) -> None:
        client = await one_record_each(world)
        session_id = await opened_session(client)
        answer = await client.request(fetch(session_id=session_id, session_epoch=1, partitions=ALL), VERSION)
        assert (answer.error_code, answer.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
        assert len(sessions) == 0
        assert watchers(world) == 0

    simulate(run)


@pytest.mark.parametrize("wrong", ["limit", "epoch", "rows"])
def test_a_request_that_is_refused_leaves_its_session_as_it_was(wrong: str, sessions: Sessions) -> None:
    async def run(world: World) -> None:
        client = await one_record_each(world)
        session_id = await opened_session(client)
        bad = fetch(0, session_id=session_id, session_epoch=7 if wrong == "epoch" else 1, partitions=ALL)
        if wrong == "limit":
            bad.topics[0].partitions[-1].partition_max_bytes = -1
        elif wrong == "rows":
            bad.forgotten_topics_data = [ForgottenTopic(topic="t", partitions=list(range(200_000)))]
        error = ErrorCode.INVALID_FETCH_SESSION_EPOCH if wrong == "epoch" else ErrorCode.INVALID_REQUEST
        assert (await client.request(bad, VERSION)).error_code == error
        session = sessions.find(session_id)
        assert (len(session.targets), session.epoch) == (PARTITIONS, 1)
        assert {target.fetch_offset for target in session.targets.values()} == {1}
        following = await client.request(fetch(session_id=session_id, session_epoch=1, partitions=range(0)), VERSION)
        assert (following.error_code, told(following)) == (ErrorCode.NONE, {})

    simulate(run)
