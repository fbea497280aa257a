"""A cluster with scripted answers, on the simulated loop: no sockets, no waiting, and a record of all requests.

It keeps only a broker's basic rules: leaders, log starts and ends, and committed offsets of groups. A test may replace
any answer by a function of its own, which returns another one, none at all, or closes the connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lowtide.admin import AdminClient, ClientSettings, DeleteRecordsError
from lowtide.admin.brokers import ClientPorts
from lowtide.protocol.api_keys import API, ApiKey, response_header_is_flexible
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.headers import frame, read_request_header, response_header
from lowtide.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsetsGroup,
    DescribedShareOffsetsTopic,
    DescribeShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from lowtide.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from lowtide.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from lowtide.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.network import listen
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_node import SimulatedNode
from lowtide.runtime.simulated_ports import SimulatedClock

T = TypeVar("T")

PORT = 9092
NO_ANSWER = object()
HANG_UP = object()

Answer = Callable[["ScriptedBroker", Any], Any]


@dataclass
class ScriptedPartition:
    """One partition: its leader, and its offsets. Record `offset` has the timestamp `offset * 10`."""

    leader: int
    leader_epoch: int = 5
    log_start: int = 0
    high_watermark: int = 100
    replicas: tuple[int, ...] = (1,)
    isr: tuple[int, ...] = (1,)
    followers_start: int | None = None
    """The log start of the slowest follower, if it differs from the leader's."""

    @property
    def low_watermark(self) -> int:
        return self.log_start if self.followers_start is None else min(self.log_start, self.followers_start)


@dataclass
class ScriptedTopic:
    topic_id: bytes
    partitions: list[ScriptedPartition]


@dataclass
class Asked:
    """One request, as received."""

    broker_id: int
    key: ApiKey
    version: int
    request: Any
    at_ms: int


class ScriptedBroker(asyncio.Protocol):
    """One connection to one broker."""

    def __init__(self, cluster: ScriptedCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.received = bytearray()
        self.transport: Any = None
        self.waits = False
        """A request is not answered yet: later ones wait, as in a real broker."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        while len(self.received) >= 4 and not self.waits:
            (size,) = struct.unpack_from(">i", self.received)
            if len(self.received) < 4 + size:
                return
            request = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            self._serve(request)

    def _serve(self, request: bytes) -> None:
        number, version, correlation_id, _client_id, position = read_request_header(request, 0, len(request))
        key = ApiKey(number)
        message = codec_for(API[key].request, version).decode(request, position, len(request))
        cluster = self.cluster
        cluster.asked.append(Asked(self.broker_id, key, version, message, cluster.clock.monotonic_ms()))
        script = cluster.scripts.get((self.broker_id, key), cluster.scripts.get((None, key), cluster.defaults.get(key)))
        assert script is not None, key
        answer = script(self, message)
        if answer is NO_ANSWER:
            self.waits = True
            return
        if answer is HANG_UP:
            self.transport.close()
            return
        if isinstance(answer, bytes):
            self.transport.write(answer)
            return
        encoded = codec_for(type(answer), version).encode(answer)
        framed = frame(response_header(correlation_id, response_header_is_flexible(key, version)), encoded)
        if delay_ms := cluster.delays_ms.get(self.broker_id, 0):
            self.waits = True
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._send_late, framed)
        else:
            self.transport.write(framed)

    def _send_late(self, framed: bytes) -> None:
        self.transport.write(framed)
        self.waits = False
        self.data_received(b"")


@dataclass
class ScriptedCluster:
    """The brokers of a scripted cluster, their topics, and the requests that they received."""

    loop: SimulatedLoop
    topics: dict[str, ScriptedTopic] = field(default_factory=dict)
    committed: dict[str, dict[TopicPartition, tuple[int, int]]] = field(default_factory=dict)
    """Offset and leader epoch by group and partition."""
    shared: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    """The start offsets of share groups."""
    versions: dict[ApiKey, int] = field(default_factory=dict)
    """Highest versions, where they are lower than ours; -1 for a missing API."""
    scripts: dict[tuple[int | None, ApiKey], Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    nodes: dict[int, SimulatedNode] = field(default_factory=dict)
    delays_ms: dict[int, int] = field(default_factory=dict)
    """The time that each answer of a broker takes."""

    def __post_init__(self) -> None:
        self.clock = SimulatedClock(self.loop)
        self.defaults: dict[ApiKey, Answer] = {
            ApiKey.API_VERSIONS: lambda broker, _: broker.cluster.api_versions(),
            ApiKey.METADATA: lambda broker, request: broker.cluster.metadata(request),
            ApiKey.LIST_OFFSETS: lambda broker, request: broker.cluster.list_offsets(broker.broker_id, request),
            ApiKey.DELETE_RECORDS: lambda broker, request: broker.cluster.delete_records(broker.broker_id, request),
            ApiKey.FIND_COORDINATOR: lambda broker, request: broker.cluster.find_coordinator(request),
            ApiKey.OFFSET_FETCH: lambda broker, request: broker.cluster.offset_fetch(request),
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: lambda broker, request: broker.cluster.describe_share_group_offsets(
                request
            ),
        }

    # ------------------------------------------------------------------ for tests
    async def start(self, *broker_ids: int) -> None:
        """Makes these brokers listen, each on a host `broker-<id>`."""
        for broker_id in broker_ids:
            node = self.nodes[broker_id] = self.loop.start_node(f"broker-{broker_id}")
            await node.spawn(listen(lambda broker_id=broker_id: ScriptedBroker(self, broker_id), "", PORT))  # type: ignore[misc]

    def add_topic(self, name: str, *leaders: int, topic_id: bytes = b"\1" * 16) -> None:
        """Adds a topic whose partitions have these leaders; it replaces one of that name."""
        self.topics[name] = ScriptedTopic(topic_id, [ScriptedPartition(leader) for leader in leaders])

    def partition(self, topic: str, index: int = 0) -> ScriptedPartition:
        return self.topics[topic].partitions[index]

    def count(self, key: ApiKey, broker_id: int | None = None) -> int:
        """Returns the number of requests of an API."""
        return sum(asked.key == key and broker_id in (None, asked.broker_id) for asked in self.asked)

    def deletes(self) -> list[tuple[int, dict[TopicPartition, int]]]:
        """Every DeleteRecords request: the broker and the offsets."""
        return [
            (
                asked.broker_id,
                {
                    TopicPartition(topic.name, row.partition_index): row.offset
                    for topic in asked.request.topics
                    for row in topic.partitions
                },
            )
            for asked in self.asked
            if asked.key == ApiKey.DELETE_RECORDS
        ]

    def client(self, **settings: Any) -> AdminClient:
        """Returns a client that knows broker 1."""
        given = {"bootstrap.servers": f"broker-1:{PORT}"} | {
            key.replace("_", "."): value for key, value in settings.items()
        }
        return AdminClient(ClientSettings.of(given), ClientPorts(self.clock, Random(7)))

    # ------------------------------------------------------------------ answers
    def api_versions(self) -> ApiVersionsResponse:
        rows = [
            ApiVersion(
                api_key=key, min_version=spec.min_version, max_version=min(spec.max_version, self.versions.get(key, 99))
            )
            for key, spec in API.items()
            if self.versions.get(key, 99) >= 0
        ]
        return ApiVersionsResponse(error_code=0, api_keys=rows)

    def metadata(self, request: Any) -> MetadataResponse:
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        brokers = [MetadataResponseBroker(node_id=node, host=f"broker-{node}", port=PORT) for node in self.nodes]
        return MetadataResponse(
            brokers=brokers, cluster_id="scripted", controller_id=1, topics=[self._topic(name) for name in names]
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        topic = self.topics.get(name)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name, partitions=[])
        rows = [
            MetadataResponsePartition(
                error_code=0,
                partition_index=index,
                leader_id=row.leader,
                leader_epoch=row.leader_epoch,
                replica_nodes=list(row.replicas),
                isr_nodes=list(row.isr),
            )
            for index, row in enumerate(topic.partitions)
        ]
        return MetadataResponseTopic(error_code=0, name=name, topic_id=topic.topic_id, partitions=rows)

    def find_coordinator(self, request: Any) -> FindCoordinatorResponse:
        rows = [Coordinator(key=key, node_id=1, host="broker-1", port=PORT) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=rows, node_id=1, host="broker-1", port=PORT)

    def offset_fetch(self, request: Any) -> OffsetFetchResponse:
        groups = []
        for group in request.groups:
            committed = self.committed.get(group.group_id, {})
            topics = []
            for topic in group.topics or []:
                rows = []
                for index in topic.partition_indexes:
                    offset, epoch = committed.get(TopicPartition(topic.name, index), (-1, -1))
                    rows.append(
                        OffsetFetchResponsePartitions(
                            partition_index=index, committed_offset=offset, committed_leader_epoch=epoch
                        )
                    )
                topics.append(OffsetFetchResponseTopics(name=topic.name, partitions=rows))
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return OffsetFetchResponse(groups=groups)

    def describe_share_group_offsets(self, request: Any) -> DescribeShareGroupOffsetsResponse:
        groups = []
        for group in request.groups:
            if group.group_id not in self.shared:
                groups.append(
                    DescribedShareOffsetsGroup(group_id=group.group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND)
                )
                continue
            topics = []
            for (name, index), start in self.shared[group.group_id].items():
                row = DescribedShareOffset(partition_index=index, start_offset=start)
                topics.append(
                    DescribedShareOffsetsTopic(topic_name=name, topic_id=self.topics[name].topic_id, partitions=[row])
                )
            groups.append(DescribedShareOffsetsGroup(group_id=group.group_id, topics=topics))
        return DescribeShareGroupOffsetsResponse(groups=groups)

    def list_offsets(self, broker_id: int, request: Any) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            rows = [self._listed(broker_id, topic.name, row) for row in topic.partitions]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=rows))
        return ListOffsetsResponse(topics=topics)

    def _listed(self, broker_id: int, name: str, row: Any) -> ListOffsetsPartitionResponse:
        index = row.partition_index
        partition = self.topics[name].partitions[index]
        if partition.leader != broker_id:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        newest = partition.high_watermark - 1
        found = {-1: (partition.high_watermark, -1), -2: (partition.log_start, -1), -3: (newest, newest * 10)}.get(
            row.timestamp
        )
        if found is None:
            offset = max(partition.log_start, -(-row.timestamp // 10))
            found = (offset, offset * 10) if offset <= newest else (-1, -1)
        return ListOffsetsPartitionResponse(partition_index=index, error_code=0, offset=found[0], timestamp=found[1])

    def delete_records(self, broker_id: int, request: Any) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            rows = [
                self.delete(broker_id, topic.name, row, leader_only=request.leader_only) for row in topic.partitions
            ]
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=rows))
        return DeleteRecordsResponse(topics=topics)

    def delete(self, broker_id: int, name: str, row: Any, *, leader_only: bool) -> DeleteRecordsPartitionResult:
        """Returns the answer of a broker to one row."""
        index = row.partition_index
        code = ErrorCode.NONE
        topic = self.topics.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif topic.partitions[index].leader != broker_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif row.offset > topic.partitions[index].high_watermark:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        if code or topic is None:
            return DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1, error_code=code)
        partition = topic.partitions[index]
        partition.log_start = max(partition.log_start, row.offset)
        if partition.low_watermark < row.offset and not leader_only:
            code = ErrorCode.REQUEST_TIMED_OUT
        return DeleteRecordsPartitionResult(
            partition_index=index,
            low_watermark=partition.low_watermark,
            leader_log_start_offset=partition.log_start,
            error_code=code,
        )


def failure(result: object) -> DeleteRecordsError:
    """Returns why a partition's delete failed."""
    assert isinstance(result, DeleteRecordsError), result
    return result


def simulated(test: Callable[[ScriptedCluster], Coroutine[Any, Any, T]], *broker_ids: int, seed: int = 1) -> T:
    """Runs a test with a cluster of these brokers (1 to 3 unless others are named)."""

    async def main(loop: SimulatedLoop) -> T:
        cluster = ScriptedCluster(loop)
        await cluster.start(*(broker_ids or (1, 2, 3)))
        return await test(cluster)

    return run_simulation(main, seed)
