"""DescribeQuorum: the metadata as Kafka's tools read them, and what is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.handlers.describe_quorum import handler
from lowtide.metadata.image import BrokerImage, MetadataImage
from lowtide.metadata.records import Listener
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumPartition,
    QuorumReplica,
    QuorumTopic,
)

CONTEXT: Any = SimpleNamespace(connection=SimpleNamespace(listener_name="PLAINTEXT", local_address=("10.0.0.9", 19092)))
HERE = 2
NOW_MS = 5_000
METADATA = [QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=0)])]


class Reached:
    """Says of which brokers it is known that they act on an image."""

    def __init__(self, *broker_ids: int) -> None:
        self._broker_ids = set(broker_ids)

    async def which_reach(self, _image: MetadataImage, _wait_ms: int) -> set[int]:
        return self._broker_ids


def ask(image: MetadataImage, topics: list[QuorumTopic] = METADATA, *reached: int) -> DescribeQuorumResponse:
    broker: Any = SimpleNamespace(
        metadata=SimpleNamespace(image=image, broker_id=HERE),
        replicas=SimpleNamespace(broker_id=HERE),
        config=SimpleNamespace(advertises_local_address=False),
        clock=SimpleNamespace(wall_ms=lambda: NOW_MS),
    )
    spread: Any = Reached(*reached)
    handle = handler(broker, spread).handle_later
    assert handle is not None
    answer = asyncio.run(handle(DescribeQuorumRequest(topics=topics), CONTEXT))
    assert isinstance(answer, DescribeQuorumResponse)
    return answer


def cluster(controller_id: int = 1, elected: int = 3) -> MetadataImage:
    brokers = {
        number: BrokerImage(number, number, (Listener("PLAINTEXT", f"host-{number}", 60_000 + number),))
        for number in (1, 2, 3)
    }
    return MetadataImage(9, "the-cluster", controller_id, elected, brokers)


def test_the_controller_is_the_leader_and_the_others_are_observers() -> None:
    """With the revision where it is known that they act on it; the one that was asked acts on its own image."""
    answer = ask(cluster(), METADATA, 1)
    [topic] = answer.topics
    [partition] = topic.partitions
    assert (topic.topic_name, partition.partition_index, partition.error_code) == (
        "__cluster_metadata",
        0,
        ErrorCode.NONE,
    )
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 3, 9)
    told = {"log_end_offset": 9, "last_fetch_timestamp": NOW_MS, "last_caught_up_timestamp": NOW_MS}
    assert partition.current_voters == [QuorumReplica(replica_id=1, **told)]
    assert partition.observers == [QuorumReplica(replica_id=2, **told), QuorumReplica(replica_id=3)]
    assert {node.node_id: (node.listeners[0].host, node.listeners[0].port) for node in answer.nodes} == {
        number: (f"host-{number}", 60_000 + number) for number in (1, 2, 3)
    }


@pytest.mark.parametrize("version", [0, 1, 2])
def test_every_version_can_be_written(version: int) -> None:
    """Also with an election at a revision beyond the epoch's 32 bits."""
    codec = codec_for(DescribeQuorumResponse, version)
    body = bytes(codec.encode(ask(cluster(elected=2**33 + 5))))
    assert codec.decode(body, 0, len(body)).topics[0].partitions[0].leader_epoch == 5


def test_without_a_controller_the_client_asks_again() -> None:
    answer = ask(cluster(controller_id=-1))
    assert (answer.error_code, answer.topics) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


@pytest.mark.parametrize(
    "topics",
    [
        [QuorumTopic(topic_name="t", partitions=[QuorumPartition(partition_index=0)])],
        [QuorumTopic(topic_name="__cluster_metadata", partitions=[QuorumPartition(partition_index=1)])],
        [*METADATA, *METADATA],
        [QuorumTopic(topic_name="__cluster_metadata", partitions=[*METADATA[0].partitions] * 2)],
    ],
    ids=["topic", "partition", "twice", "partition-twice"],
)
def test_other_partitions_are_unknown(topics: list[QuorumTopic]) -> None:
    answer = ask(cluster(), topics)
    assert answer.error_code == ErrorCode.NONE
    seen = [
        (topic.topic_name, row.partition_index, row.error_code) for topic in answer.topics for row in topic.partitions
    ]
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert seen == [(topic.topic_name, row.partition_index, error) for topic in topics for row in topic.partitions]
