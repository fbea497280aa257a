"""Topics for workloads: created, waited for until every partition serves, filled, and deleted."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

from .client import Address, Client, check
from .errors import BenchError
from .frames import FETCH_BYTES, FETCH_PARTITION_BYTES, produce_error_position, produce_frame
from .pump import Lane, pump
from .targets import Target

REPLICAS, MINIMUM_IN_SYNC = 3, 2
"""Settings of a topic on a cluster."""

LATEST = -1
READY_LIMIT_S = 120.0
_POLL_S = 0.005
_DELETE_MS = 60_000
_FILL_DEPTH = 2
_ASK_AGAIN = {ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT}
"""Errors after which the topic is created again: without a controller, or after it has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic all of whose partitions serve."""

    name: str
    leaders: Sequence[Address]
    """The leader of each partition."""

    create_s: float
    """Until CreateTopics was answered."""

    serve_s: float
    """The time from the same moment until every partition returned its end offset."""


@contextmanager
def topic_on(
    target: Target, partitions: int, configs: Mapping[str, str] | None = None, *, replicas: Sequence[int] = ()
) -> Iterator[Topic]:
    """Yields a new topic, and deletes it at the end, also after a failure.

    `replicas`: of every partition; else the target chooses.
    """
    name = f"bench-{uuid.uuid4().hex[:12]}"
    try:
        yield create_topic(target, name, partitions, configs or {}, replicas=replicas)
    finally:
        with suppress(OSError), target.connect() as client:
            client.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=_DELETE_MS))


def create_topic(
    target: Target, name: str, partitions: int, configs: Mapping[str, str], *, replicas: Sequence[int] = ()
) -> Topic:
    """Creates a topic, a replica on each broker up to three, asking again while there is no controller.

    Errors: BenchError.
    """
    rows = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=list(replicas))
        for number in range(partitions if replicas else 0)
    ]
    if target.brokers > 1:
        configs = {"min.insync.replicas": str(MINIMUM_IN_SYNC), **configs}
    wanted = CreatableTopic(
        name=name,
        num_partitions=-1 if rows else partitions,
        replication_factor=-1 if rows else min(target.brokers, REPLICAS),
        assignments=rows,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    began = time.perf_counter()
    was_lost = False
    with target.connect() as client:
        while (result := client.ask(CreateTopicsRequest(topics=[wanted])).topics[0]).error_code in _ASK_AGAIN:
            was_lost = was_lost or result.error_code == ErrorCode.REQUEST_TIMED_OUT
            if time.perf_counter() - began > READY_LIMIT_S:
                break
            time.sleep(_POLL_S)
    if not (was_lost and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS):
        check(result.error_code, f"CreateTopics ({result.error_message or ''})")
    create_s = time.perf_counter() - began
    leaders = wait_until_serving(target, name, partitions)
    return Topic(name=name, leaders=leaders, create_s=create_s, serve_s=time.perf_counter() - began)


def wait_until_serving(target: Target, name: str, partitions: int) -> list[Address]:
    """Waits until every partition has a leader that returns its end offset.

    Returns the leaders. Errors: BenchError after a long time.
    """
    limit = time.perf_counter() + READY_LIMIT_S
    while True:
        with suppress(OSError):
            leaders = find_leaders(target, name, partitions)
            if leaders is not None and end_offsets(name, leaders) is not None:
                return leaders
        if time.perf_counter() > limit:
            raise BenchError(f"not every partition of {name} serves after {READY_LIMIT_S:.0f} s")
        time.sleep(_POLL_S)


def find_leaders(target: Target, name: str, partitions: int) -> list[Address] | None:
    """Returns the address of each partition's leader; None while a partition has none. Errors: OSError."""
    with target.connect() as client:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        answer = client.ask(request)
    brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
    rows = {row.partition_index: row for row in answer.topics[0].partitions}
    if answer.topics[0].error_code or len(rows) != partitions:
        return None
    found = [brokers.get(rows[partition].leader_id) for partition in range(partitions)]
    return None if None in found else [address for address in found if address is not None]


def by_leader(leaders: Sequence[Address]) -> dict[Address, list[int]]:
    """Groups partitions by leader."""
    partitions = range(len(leaders))
    return {
        leader: [partition for partition in partitions if leaders[partition] == leader]
        for leader in dict.fromkeys(leaders)
    }


def end_offsets(name: str, leaders: Sequence[Address]) -> list[int] | None:
    """Returns the end offset of each partition, exclusive; None while a leader cannot return it. Errors: OSError."""
    ends: dict[int, int] = {}
    for leader, partitions in by_leader(leaders).items():
        rows = [ListOffsetsPartition(partition_index=partition, timestamp=LATEST) for partition in partitions]
        with Client(leader) as client:
            answer = client.ask(
                ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=rows)])
            )
        for row in answer.topics[0].partitions:
            if row.error_code:
                return None
            ends[row.partition_index] = row.offset
    return [ends[partition] for partition in range(len(leaders))]


def check_ends(topic: Topic, expected: int) -> list[int]:
    """Returns the end offset of each partition. Errors: BenchError if the sum is not the produced records."""
    ends = end_offsets(topic.name, topic.leaders)
    if ends is None or sum(ends) != expected:
        raise BenchError(f"{expected} records were acknowledged, the log ends say {ends}")
    return ends


def can_fetch(leader: Address, topic: str, partition: int, offset: int) -> bool:
    """Returns whether a fetch at this offset returns records. Errors: OSError."""
    return _fetch(leader, topic, partition, offset) == (ErrorCode.NONE, True)


def is_deleted(leader: Address, topic: str, partition: int, offset: int) -> bool:
    """Returns whether a fetch at this offset is out of range. Errors: OSError."""
    return _fetch(leader, topic, partition, offset)[0] == ErrorCode.OFFSET_OUT_OF_RANGE


def _fetch(leader: Address, topic: str, partition: int, offset: int) -> tuple[int, bool]:
    row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_PARTITION_BYTES)
    topics = [FetchTopic(topic=topic, partitions=[row])]
    with Client(leader) as client:
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=FETCH_BYTES, topics=topics))
    found = answer.responses[0].partitions[0]
    return found.error_code, bool(found.records)


def fill(topic: Topic, batch: bytes, batches: int) -> None:
    """Produces a batch this many times into each partition."""
    lanes = [
        Lane(leader, itertools.repeat(produce_frame(topic.name, partition, batch), batches))
        for partition, leader in enumerate(topic.leaders)
    ]
    error_position = produce_error_position(topic.name)
    pump(lanes, count=batches * len(lanes), depth=_FILL_DEPTH, error_position=error_position)


def produce_each(topic: Topic, batch: bytes) -> None:
    """Produces a batch into each of many partitions, over one connection to each leader."""
    error_position = produce_error_position(topic.name)
    for leader, partitions in by_leader(topic.leaders).items():
        lane = Lane(leader, (produce_frame(topic.name, partition, batch) for partition in partitions))
        pump([lane], count=len(partitions), depth=16, error_position=error_position)
