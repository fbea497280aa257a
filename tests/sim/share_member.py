"""A member of a share group as a client library has it: sessions with leaders, records, acknowledgements."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.share_acknowledge import (
    ShareAcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
)
from lowtide.protocol.messages.share_fetch import ShareFetchPartition, ShareFetchRequest, ShareFetchTopic
from lowtide.protocol.records import iterate_batches, iterate_records
from lowtide.simulation.client import ConnectionLostError

from .share_cluster import ShareCluster
from .test_share_groups import Member

ACCEPT, RELEASE, REJECT = 1, 2, 3


async def leader_of(cluster: ShareCluster, partition: int) -> int:
    """Returns the broker that leads a partition of `t`, as one says that lives."""
    while True:
        for client in cluster.clients.values():
            if client.lost:
                continue
            try:
                answer = await client.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
            except ConnectionLostError:
                continue
            rows = [
                row
                for topic in answer.topics
                if topic.name == "t"
                for row in topic.partitions
                if row.partition_index == partition
            ]
            leader = rows[0].leader_id if rows else -1
            if leader in cluster.clients and not cluster.clients[leader].lost:
                return int(leader)
        await asyncio.sleep(0.1)


async def produce(cluster: ShareCluster, partition: int, values: list[bytes]) -> None:
    """Have records in a partition, one batch for all, acknowledged by all replicas."""
    while True:
        records = build_batch([(1_700_000_000_000, None, value, ()) for value in values])
        rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=records)])]
        client = cluster.clients[await leader_of(cluster, partition)]
        answer = await client.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=rows), 9)
        if answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
            return
        await asyncio.sleep(0.1)


def batches(*ranges: tuple[int, int, int]) -> list[ShareAcknowledgementBatch]:
    """Acknowledgements: first offset, last offset, type."""
    return [
        ShareAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
        for first, last, kind in ranges
    ]


class ShareMember:
    """A member of the group `g` and its session with the leader of one partition."""

    def __init__(self, cluster: ShareCluster, name: str, partition: int = 0) -> None:
        self.cluster, self.name, self.partition = cluster, name, partition
        self.member = Member(cluster, name)
        self.leader = -1
        self.epoch = 0

    async def join(self, partitions: set[int] | None = None) -> None:
        await self.member.until(partitions or {0, 1})

    def _request(self, acknowledged: list[ShareAcknowledgementBatch], options: dict[str, Any]) -> ShareFetchRequest:
        rows = [ShareFetchPartition(partition_index=self.partition, acknowledgement_batches=acknowledged)]
        names = {"max_wait_ms": 1_000, "min_bytes": 1, "max_records": 500, "batch_size": 500} | options
        topics = (
            [ShareFetchTopic(topic_id=self.cluster.topic_id, partitions=rows)] if not self.epoch or acknowledged else []
        )
        return ShareFetchRequest(
            group_id="g",
            member_id=self.name,
            share_session_epoch=self.epoch,
            topics=topics,
            forgotten_topics_data=[],
            **names,
        )

    async def fetch(self, *acknowledged: tuple[int, int, int], **options: Any) -> Any:
        """Returns the answer of the leader."""
        if self.leader < 0:
            self.leader, self.epoch = await leader_of(self.cluster, self.partition), 0
        answer = await self.cluster.clients[self.leader].request(self._request(batches(*acknowledged), options), 2)
        if answer.error_code == ErrorCode.NONE:
            self.epoch += 1
        return answer

    async def row(self, *acknowledged: tuple[int, int, int], **options: Any) -> Any:
        """Returns the partition's row with records or acknowledgements; a moved partition is asked elsewhere."""
        while True:
            try:
                answer = await self.fetch(*acknowledged, **options)
            except ConnectionLostError:
                self.leader = -1
                await asyncio.sleep(0.1)
                continue
            assert answer.error_code == ErrorCode.NONE, answer
            for topic in answer.responses:
                for row in topic.partitions:
                    if row.error_code == ErrorCode.NONE:
                        return row
            if answer.responses:
                self.leader = -1
                await asyncio.sleep(0.1)

    async def acknowledge(self, *acknowledged: tuple[int, int, int], epoch: int | None = None) -> Any:
        """Returns the answer to a ShareAcknowledge."""
        rows = [
            ShareAcknowledgePartition(partition_index=self.partition, acknowledgement_batches=batches(*acknowledged))
        ]
        request = ShareAcknowledgeRequest(
            group_id="g",
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=[ShareAcknowledgeTopic(topic_id=self.cluster.topic_id, partitions=rows if acknowledged else [])],
        )
        answer = await self.cluster.clients[self.leader].request(request, 2)
        if answer.error_code == ErrorCode.NONE:
            self.epoch += 1
        return answer


def acquired(row: Any) -> list[tuple[int, int, int]]:
    """First offset, last offset and delivery count of what was acquired."""
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records]


def values(row: Any) -> list[bytes | None]:
    """Returns the values of the records that were acquired."""
    found = []
    for position, header in iterate_batches(memoryview(row.records)):
        batch = bytes(row.records)[position : position + header.size_bytes]
        for record in iterate_records(batch, max_bytes=1 << 20):
            if any(first <= record.offset <= last for first, last, _ in acquired(row)):
                found.append(record.value)
    return found
