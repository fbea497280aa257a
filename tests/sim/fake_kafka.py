"""A small Kafka cluster on the simulated loop, whose every answer a test may falsify.

It has the least that a checker of deletes needs: one log for each replica, which are all alike unless a test changes
one, and brokers that lead and follow. Records are never removed: the log start hides them, so a log start that falls
brings them back. `lowtide` adds the requests that erase keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from lowtide.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from lowtide.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from lowtide.protocol.messages.elect_leaders import (
    ElectLeadersPartitionResult,
    ElectLeadersResponse,
    ElectLeadersTopicResult,
)
from lowtide.protocol.messages.erase_records import ErasedPartition, ErasedTopic, EraseRecordsResponse
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from lowtide.protocol.messages.find_records import FindRecordsResponse, FoundPartition, FoundTopic
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from lowtide.protocol.records import iterate_batches, iterate_records
from tests.unit.admin.scripted import HANG_UP, PORT, ScriptedBroker, ScriptedCluster, ScriptedPartition, ScriptedTopic

BROKERS = (1, 2, 3)
RECORDS_PER_FETCH = 50

Record = tuple[bytes | None, bytes | None]
Row = Any


@dataclass
class FakeReplica:
    """One replica's log."""

    log_start: int = 0
    records: list[Record | None] = field(default_factory=list)
    """By offset; None is a gap."""
    told_log_start: int | None = None
    """What its answers say, if it is not the truth."""
    is_stuck: bool = False
    """It returns no records."""
    erased: set[bytes] = field(default_factory=set)


@dataclass
class FakePartition:
    """The replicas of one partition."""

    replicas: dict[int, FakeReplica] = field(default_factory=lambda: {broker: FakeReplica() for broker in BROKERS})
    deleted: int = 0
    """The highest delete that was done."""

    def each(self) -> list[FakeReplica]:
        return list(self.replicas.values())


class FakeKafka:
    """The cluster. `on_row` holds functions by API, which may change the answer's row of a partition.

    They get the partition, the request's row, the replica, and the honest answer as a function.
    """

    def __init__(self, cluster: ScriptedCluster, *, lowtide: bool = False) -> None:
        self.scripted = cluster
        self.partitions: dict[tuple[str, int], FakePartition] = {}
        self.on_row: dict[ApiKey, Callable[[FakePartition, Row, FakeReplica, Callable[[], Row]], Row]] = {}
        answers = {
            ApiKey.DESCRIBE_CLUSTER: self._describe,
            ApiKey.CREATE_TOPICS: self._create,
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.DELETE_RECORDS: self._delete_records,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.ELECT_LEADERS: self._elect,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self._reassign,
            ApiKey.FIND_RECORDS: self._find if lowtide else lambda *_: HANG_UP,
            ApiKey.ERASE_RECORDS: self._erase if lowtide else lambda *_: HANG_UP,
        }
        for key, answer in answers.items():
            cluster.scripts[None, key] = answer

    @property
    def partition(self) -> FakePartition:
        """The first one."""
        return next(iter(self.partitions.values()))

    @property
    def state(self) -> ScriptedPartition:
        """The metadata of the first partition."""
        return next(iter(self.scripted.topics.values())).partitions[0]

    @property
    def leader(self) -> FakeReplica:
        return self.partition.replicas[self.state.leader]

    @property
    def follower(self) -> FakeReplica:
        return next(log for broker, log in self.partition.replicas.items() if broker != self.state.leader)

    def lead(self, broker: int, state: ScriptedPartition | None = None) -> None:
        """Makes a broker the leader."""
        state = state or self.state
        state.leader, state.leader_epoch = broker, state.leader_epoch + 1

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    # ------------------------------------------------------------------ the cluster and its topics
    def _describe(self, _: ScriptedBroker, __: Any) -> DescribeClusterResponse:
        rows = [DescribeClusterBroker(broker_id=each, host=f"broker-{each}", port=PORT) for each in BROKERS]
        return DescribeClusterResponse(error_code=0, cluster_id="fake", controller_id=1, brokers=rows)

    def _create(self, _: ScriptedBroker, request: Any) -> CreateTopicsResponse:
        for topic in request.topics:
            rows = [ScriptedPartition(1, replicas=BROKERS, isr=BROKERS) for _ in range(topic.num_partitions)]
            self.scripted.topics[topic.name] = ScriptedTopic(b"\1" * 16, rows)
            self.partitions |= {(topic.name, number): FakePartition() for number in range(topic.num_partitions)}
        return CreateTopicsResponse(
            topics=[CreatableTopicResult(name=each.name, error_code=0) for each in request.topics]
        )

    def _delete_topics(self, _: ScriptedBroker, request: Any) -> DeleteTopicsResponse:
        for topic in request.topics:
            del self.scripted.topics[topic.name]
        return DeleteTopicsResponse(
            responses=[DeletableTopicResult(name=each.name, error_code=0) for each in request.topics]
        )

    def _elect(self, _: ScriptedBroker, request: Any) -> ElectLeadersResponse:
        results = []
        for topic in request.topic_partitions:
            for number in topic.partitions:
                state = self.scripted.topics[topic.topic].partitions[number]
                if state.leader != state.replicas[0]:
                    self.lead(state.replicas[0], state)
            rows = [ElectLeadersPartitionResult(partition_id=number, error_code=0) for number in topic.partitions]
            results.append(ElectLeadersTopicResult(topic=topic.topic, partition_result=rows))
        return ElectLeadersResponse(error_code=0, replica_election_results=results)

    def _reassign(self, _: ScriptedBroker, request: Any) -> AlterPartitionReassignmentsResponse:
        topics = []
        for topic in request.topics:
            for row in topic.partitions:
                self.scripted.topics[topic.name].partitions[row.partition_index].replicas = tuple(row.replicas)
            rows = [
                ReassignablePartitionResponse(partition_index=row.partition_index, error_code=0)
                for row in topic.partitions
            ]
            topics.append(ReassignableTopicResponse(name=topic.name, partitions=rows))
        return AlterPartitionReassignmentsResponse(error_code=0, responses=topics)

    # ------------------------------------------------------------------ records
    def _row(
        self, key: ApiKey, broker: ScriptedBroker, topic: str, number: int, row: Row, answer: Any, *, leads: bool = True
    ) -> Row | None:
        """Returns the answer about one partition; None if this broker does not lead it."""
        partition = self.partitions[topic, number]
        if leads and self.scripted.topics[topic].partitions[number].leader != broker.broker_id:
            return None
        replica = partition.replicas[broker.broker_id]
        change = self.on_row.get(key)
        if change is None or partition is not self.partition:
            return answer(partition, row, replica)
        return change(partition, row, replica, lambda: answer(partition, row, replica))

    def _produce(self, broker: ScriptedBroker, request: Any) -> Any:
        (topic,) = request.topic_data
        (data,) = topic.partition_data
        row = self._row(ApiKey.PRODUCE, broker, topic.name, data.index, data, _append)
        if row is HANG_UP:
            return HANG_UP
        if row is None:
            row = PartitionProduceResponse(
                index=data.index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, base_offset=-1
            )
        return ProduceResponse(responses=[TopicProduceResponse(name=topic.name, partition_responses=[row])])

    def _fetch(self, broker: ScriptedBroker, request: Any) -> Any:
        (topic,) = request.topics
        (asked,) = topic.partitions
        row = self._row(ApiKey.FETCH, broker, topic.topic, asked.partition, asked, _read, leads=False)
        if row is HANG_UP:
            return HANG_UP
        return FetchResponse(responses=[FetchableTopicResponse(topic=topic.topic, partitions=[row])])

    def _delete_records(self, broker: ScriptedBroker, request: Any) -> Any:
        (topic,) = request.topics
        (asked,) = topic.partitions
        row = self._row(ApiKey.DELETE_RECORDS, broker, topic.name, asked.partition_index, asked, _delete)
        if row is HANG_UP:
            return HANG_UP
        if row is None:
            row = deleted_row(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return DeleteRecordsResponse(topics=[DeleteRecordsTopicResult(name=topic.name, partitions=[row])])

    def _list_offsets(self, broker: ScriptedBroker, request: Any) -> Any:
        (topic,) = request.topics
        (asked,) = topic.partitions
        row = self._row(ApiKey.LIST_OFFSETS, broker, topic.name, asked.partition_index, asked, _earliest)
        if row is None:
            row = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=[row])])

    # ------------------------------------------------------------------ erasing keys
    def _find(self, broker: ScriptedBroker, request: Any) -> FindRecordsResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                partition = self.partitions[topic.name, asked.partition_index]
                end = len(partition.replicas[broker.broker_id].records)
                for replica in partition.each() if request.erase else ():
                    replica.erased.update(
                        record[1] for record in replica.records if record and record[0] in request.keys and record[1]
                    )
                row = FoundPartition(
                    partition_index=asked.partition_index,
                    error_code=0,
                    searched_from=0,
                    searched_to=end,
                    record_count=1,
                )
                rows.append(row)
            topics.append(FoundTopic(name=topic.name, partitions=rows))
        return FindRecordsResponse(error_code=0, topics=topics)

    def _erase(self, _: ScriptedBroker, request: Any) -> EraseRecordsResponse:
        topics = [
            ErasedTopic(
                name=topic.name,
                partitions=[
                    ErasedPartition(partition_index=row.partition_index, error_code=0) for row in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return EraseRecordsResponse(error_code=0, topics=topics)


def records_of(data: Any) -> list[Record]:
    """The records of a Produce request."""
    return [
        (record.key, record.value)
        for position, header in iterate_batches(data.records)
        for record in iterate_records(
            memoryview(data.records)[position : position + header.size_bytes], max_bytes=1 << 20
        )
    ]


def deleted_row(low_watermark: int, error_code: int = 0, number: int = 0) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=number, low_watermark=low_watermark, error_code=error_code)


def _append(partition: FakePartition, data: Any, leader: FakeReplica) -> PartitionProduceResponse:
    records, base = records_of(data), len(leader.records)
    for replica in partition.each():
        replica.records += records
    return PartitionProduceResponse(index=data.index, error_code=0, base_offset=base)


def _read(_: FakePartition, asked: Any, replica: FakeReplica) -> PartitionData:
    start, end = asked.fetch_offset, len(replica.records)
    told = replica.log_start if replica.told_log_start is None else replica.told_log_start
    if not replica.log_start <= start <= end:
        code = ErrorCode.OFFSET_OUT_OF_RANGE
        return PartitionData(partition_index=asked.partition, error_code=code, high_watermark=-1, records=b"")
    batches = b""
    for offset in range(start, 0 if replica.is_stuck else min(end, start + RECORDS_PER_FETCH)):
        record = replica.records[offset]
        if record is not None and record[1] not in replica.erased:
            batches += build_batch([(0, *record, ())], base_offset=offset)
    return PartitionData(
        partition_index=asked.partition, error_code=0, high_watermark=end, log_start_offset=told, records=batches
    )


def _delete(partition: FakePartition, asked: Any, leader: FakeReplica) -> DeleteRecordsPartitionResult:
    if asked.offset > len(leader.records):
        return deleted_row(-1, ErrorCode.OFFSET_OUT_OF_RANGE, asked.partition_index)
    for replica in partition.each():
        replica.log_start = max(replica.log_start, asked.offset)
    partition.deleted = max(partition.deleted, asked.offset)
    lowest = min(replica.log_start for replica in partition.each())
    return deleted_row(lowest, 0, asked.partition_index)


def _earliest(_: FakePartition, asked: Any, leader: FakeReplica) -> ListOffsetsPartitionResponse:
    told = leader.log_start if leader.told_log_start is None else leader.told_log_start
    return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=0, offset=told, timestamp=-1)
