"""Every request that waits: when its connection ends, its wait does, and nothing of it is left.

Each row parks one request. After its client has gone there is no connection, no task, no waiting request, and no place
that is taken, long before the time of the request is over.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lowtide.broker.administration.envelopes import Origin, seal_envelope
from lowtide.broker.handlers.erase_records import PLACES_MIN, WAITING_SHARE
from lowtide.broker.network.connection.slow_clients import ABANDONED_MS
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.await_metadata import AwaitMetadataRequest
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.describe_retention import DescribeRetentionRequest, DescribeRetentionTopic
from lowtide.protocol.messages.erase_records import EraseRecordsPartition, EraseRecordsRequest, EraseRecordsTopic
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from tests.examples import one_in

from .leading import A_RECORD, Leading, simulate
from .test_leading_deletes import begin

LONG_MS = 600_000
"""The time of each request; a test sees that nothing is left a few seconds after its client has gone."""

Make = Callable[[Leading], Awaitable[tuple[Any, int]]]
"""Prepares the broker so that a request waits, and returns it with its version."""


def topic_of(world: Leading) -> bytes:
    found: bytes = world.partition().topic_id
    return found


async def produce(world: Leading) -> tuple[Any, int]:
    rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=A_RECORD)])]
    return ProduceRequest(acks=-1, timeout_ms=LONG_MS, topic_data=rows), 10


async def produce_to_two(world: Leading) -> tuple[Any, int]:
    """Two partitions, which no short form takes."""
    await world.create_topic("u", (1, 2, 3), (1, 2, 3))
    rows = [PartitionProduceData(index=number, records=A_RECORD) for number in range(2)]
    return ProduceRequest(acks=-1, timeout_ms=LONG_MS, topic_data=[TopicProduceData(name="u", partition_data=rows)]), 10


def fetch_of(world: Leading, *numbers: int, **fields: Any) -> tuple[Any, int]:
    rows = [
        FetchPartition(partition=number, fetch_offset=world.partition().log.log_end_offset, **fields)
        for number in numbers
    ]
    topics = [FetchTopic(topic_id=topic_of(world), partitions=rows)]
    return FetchRequest(max_wait_ms=LONG_MS, min_bytes=1 << 20, topics=topics, session_id=0, session_epoch=-1), 17


async def fetch(world: Leading) -> tuple[Any, int]:
    return fetch_of(world, 0, partition_max_bytes=1 << 20)


async def fetch_in_a_session(world: Leading) -> tuple[Any, int]:
    request, version = fetch_of(world, 0, partition_max_bytes=1 << 20)
    request.session_epoch = 0
    return request, version


async def fetch_of_a_follower(world: Leading) -> tuple[Any, int]:
    follower = await world.follower(2, end=world.partition().log.log_end_offset)
    await follower.fetch()
    return follower.request(wait_ms=LONG_MS), 17


async def delete(world: Leading) -> tuple[Any, int]:
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=LONG_MS), 3


async def delete_of_two_rows(world: Leading) -> tuple[Any, int]:
    request, version = await delete(world)
    request.topics[0].partitions.append(DeleteRecordsPartition(partition_index=0, offset=2))
    return request, version


async def delete_of_many_rows(world: Leading) -> tuple[Any, int]:
    """It is cut, and its rows count against what all large requests may have. Only the first partition is there."""
    request, version = await delete(world)
    request.topics[0].partitions += [
        DeleteRecordsPartition(partition_index=number, offset=1) for number in range(1, 2_000)
    ]
    return request, version


async def produce_of_many_rows(world: Leading) -> tuple[Any, int]:
    request, version = await produce(world)
    request.topic_data[0].partition_data += [
        PartitionProduceData(index=number, records=A_RECORD) for number in range(1, 2_000)
    ]
    return request, version


async def create_many_topics(world: Leading) -> tuple[Any, int]:
    """Its parts are carried out one after the other."""
    request, version = await create_topics(world)
    request.topics += [
        CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for number in range(250)
    ]
    return request, version


async def erase(world: Leading) -> tuple[Any, int]:
    world.partition().log.swaps.take()  # As while the log is compacted.
    topic = EraseRecordsTopic(name="t", partitions=[EraseRecordsPartition(partition_index=0, offset=0)])
    return EraseRecordsRequest(topics=[topic], timeout_ms=LONG_MS), 0


async def await_metadata(world: Leading) -> tuple[Any, int]:
    return AwaitMetadataRequest(revision=1 << 60, timeout_ms=LONG_MS), 0


async def describe_retention(world: Leading) -> tuple[Any, int]:
    """Another one is being answered, which asks a coordinator that doesn't answer."""
    handle = route(world, ApiKey.DESCRIBE_RETENTION).handle
    assert handle is not None
    explanations = next(  # Those of another test's broker may not be collected yet.
        each
        for each in gc.get_objects()
        if type(each).__name__ == "Explanations" and each._broker.replicas is world.replicas
    )
    await explanations._turn.acquire()
    return DescribeRetentionRequest(topics=[DescribeRetentionTopic(name="t", partitions=[0])]), 0


def hold_disk(world: Leading) -> None:
    """What the metadata say isn't carried out on this broker's disk any more."""
    assert world.broker is not None
    never = world.loop.create_future()

    async def settled() -> None:
        await asyncio.shield(never)

    world.broker.serving.partitions.assigned.settled = settled


async def create_topics(world: Leading) -> tuple[Any, int]:
    hold_disk(world)
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    return CreateTopicsRequest(topics=[topic], timeout_ms=LONG_MS), 7


async def create_partitions(world: Leading) -> tuple[Any, int]:
    hold_disk(world)
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)], timeout_ms=LONG_MS, validate_only=False
    ), 3


async def delete_topics(world: Leading) -> tuple[Any, int]:
    hold_disk(world)
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=LONG_MS), 6


async def in_an_envelope(world: Leading) -> tuple[Any, int]:
    request, version = await create_topics(world)
    return seal_envelope(ApiKey.CREATE_TOPICS, version, request, Origin(ANONYMOUS, "10.0.0.9", "someone")), 0


GROUP = {"group_id": "g", "protocol_type": "consumer"}


async def joined(world: Leading, client: Any, member_id: str = "") -> Any:
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    times = {"session_timeout_ms": 300_000, "rebalance_timeout_ms": LONG_MS}
    return await client.request(JoinGroupRequest(member_id=member_id, protocols=protocols, **times, **GROUP), 2)


async def coordinated(world: Leading) -> None:
    """The topic of the groups is there."""
    while (await world.client.request(FindCoordinatorRequest(key="g", key_type=0), 3)).error_code:
        await asyncio.sleep(0.1)


async def join_group(world: Leading) -> tuple[Any, int]:
    """Another member is in the group, and doesn't hear of it."""
    await coordinated(world)
    first = await world.connect()
    while (await joined(world, first)).error_code:
        await asyncio.sleep(0.1)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    return JoinGroupRequest(
        member_id="", protocols=protocols, session_timeout_ms=300_000, rebalance_timeout_ms=LONG_MS, **GROUP
    ), 2


async def sync_group(world: Leading) -> tuple[Any, int]:
    """The leader of the group hasn't assigned anything."""
    await join_group(world)
    first, second = await world.connect(), await world.connect()
    members = await asyncio.gather(joined(world, first), joined(world, second))
    follower = next(each for each in members if each.member_id != each.leader)
    return SyncGroupRequest(
        group_id="g", generation_id=follower.generation_id, member_id=follower.member_id, assignments=[]
    ), 2


async def share_fetch(world: Leading) -> tuple[Any, int]:
    await coordinated(world)
    member = {"group_id": "g", "member_id": "m", "rack_id": None, "subscribed_topic_names": ["t"]}
    epoch = 0
    while not (
        answer := await world.client.request(ShareGroupHeartbeatRequest(member_epoch=epoch, **member), 1)
    ).assignment:
        epoch = answer.member_epoch if answer.error_code == ErrorCode.NONE else 0
        await asyncio.sleep(0.5)
    rows = [ShareFetchPartition(partition_index=0, acknowledgement_batches=[])]
    topics = [ShareFetchTopic(topic_id=topic_of(world), partitions=rows)]
    limits = {"max_wait_ms": LONG_MS, "min_bytes": 1, "max_records": 500, "batch_size": 500}
    session = {"group_id": "g", "member_id": "m", "share_session_epoch": 0}
    return ShareFetchRequest(topics=topics, forgotten_topics_data=[], **limits, **session), 2


ALL: dict[str, Make] = {
    make.__name__: make
    for make in (
        produce,
        produce_to_two,
        fetch,
        fetch_in_a_session,
        fetch_of_a_follower,
        delete,
        delete_of_two_rows,
        delete_of_many_rows,
        produce_of_many_rows,
        create_many_topics,
        erase,
        await_metadata,
        describe_retention,
        create_topics,
        create_partitions,
        delete_topics,
        in_an_envelope,
        join_group,
        sync_group,
        share_fetch,
    )
}

ALONE = {"join_group", "sync_group", "share_fetch"}
"""Where a broker without others is enough."""

SOLE = {
    f"{topic}_{what}": "1"
    for topic in ("offsets_topic", "share_coordinator_state_topic")
    for what in ("num_partitions", "replication_factor")
}


async def started(world: Leading, name: str) -> None:
    if name not in ALONE:
        await begin(world)
        return
    await world.start(**SOLE)
    await world.create_topic("t", (1,))


def route(world: Leading, key: ApiKey) -> Any:
    assert world.broker is not None
    return world.broker.serving.host.routes[(key, 0)]


async def park(world: Leading, request: Any, version: int) -> tuple[Any, weakref.ref[Any]]:
    """Sends a request on a connection of its own, and waits until it is parked.

    Returns the client, and the broker's side of it.
    """
    assert world.broker is not None
    before = set(world.broker.serving.host.connections)
    client = await world.connect()
    client.send(request, version).add_done_callback(lambda future: future.exception())
    while not (new := set(world.broker.serving.host.connections) - before) or not next(iter(new)).answers.waiting:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.5)
    connection = new.pop()
    assert connection.answers.waiting, "the request was answered: it doesn't wait"
    return client, weakref.ref(connection)


def waiting(world: Leading) -> int:
    return sum(map(len, world.replicas.waiting._all))


def tasks_of(peer: str) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if peer in task.get_name()]


@pytest.mark.parametrize("name", one_in(3, ALL))
@pytest.mark.parametrize("reset", [pytest.param(True, marks=pytest.mark.slow), False], ids=["reset", "closed"])
def test_nothing_is_left_of_a_request_whose_client_has_gone(name: str, reset: bool) -> None:
    async def run(world: Leading) -> None:
        await started(world, name)
        request, version = await ALL[name](world)
        waited = waiting(world)
        client, connection = await park(world, request, version)
        peer = connection().peer
        if reset:
            assert world.broker is not None
            connection()._transport.abort()  # as at a reset
        else:
            client.close()
        await asyncio.sleep(
            2 if reset else (ABANDONED_MS + 6_000) / 1000
        )  # Some is swept once a second, or every five.
        assert tasks_of(peer) == []
        assert waiting(world) == waited
        assert world.broker is not None
        assert world.broker.serving.host.large_requests.rows_alive == 0
        gc.collect()
        assert connection() is None

    simulate(run)


def test_a_client_that_has_gone_frees_its_places_and_one_client_has_a_share_of_them() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        request, version = await erase(world)
        parked = [await park(world, request, version) for _ in range(WAITING_SHARE // PLACES_MIN)]
        answer = await world.client.request(request, version)
        assert answer.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        for client, _connection in parked:
            client.close()
        await asyncio.sleep((ABANDONED_MS + 6_000) / 1000)
        await park(world, request, version)

    simulate(run)


def test_what_was_accepted_is_carried_out_though_its_client_has_gone() -> None:
    async def run(world: Leading) -> None:
        await begin(world)
        for name in ("delete", "create_topics"):
            request, version = await ALL[name](world)
            client, _connection = await park(world, request, version)
            client.close()
            await asyncio.sleep((ABANDONED_MS + 6_000) / 1000)
        assert world.partition().log.log_start_offset == 1
        assert "new" in world.replicas.image.topics

    simulate(run)
