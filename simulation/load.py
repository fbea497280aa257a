"""Clients that produce, read and delete in one partition; `history` judges what they see.

Used with simulated brokers and with real processes that are killed: after a lost connection the outcome of pending
requests is open, and the client reconnects. Values are unique in a history. Randomness comes from a given source.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import check_crc, iterate_batches, iterate_records
from lowtide.simulation.client import WireClient
from lowtide.simulation.history import HistoryError, PartitionHistory

PRODUCE_VERSION, FETCH_VERSION, LIST_OFFSETS_VERSION, DELETE_RECORDS_VERSION, CREATE_TOPICS_VERSION = 9, 12, 7, 3, 7

LATEST, EARLIEST = -1, -2
_FETCH_BYTES = 1 << 20
_MAXIMUM_DECOMPRESSED_BYTES = 1 << 24
_RETRY_S = 0.02

UNDECIDED = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors after which a delete may have happened, or the partition is not ready."""


class PartitionLoad:
    """The clients of one partition. `connect` opens a connection; it may fail with OSError while the broker is down."""

    def __init__(
        self, topic: str, partition: int, connect: Callable[[], Awaitable[WireClient]], source: random.Random
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.history = PartitionHistory()
        self.counts = {"produced": 0, "deleted": 0, "read": 0, "lost": 0}
        self._connect = connect
        self._source = source
        self._serial = 0

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Runs random operations until `until` is set."""
        client: WireClient | None = None
        while not until.is_set():
            try:
                if client is None or client.lost:
                    client = await self._connect()
                await self.step(client)
            except OSError:
                self.counts["lost"] += 1
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(self._source.random() * pause_s)
        if client is not None:
            client.close()

    async def step(self, client: WireClient) -> None:
        """Runs one operation. Errors: OSError if the connection is lost; HistoryError after a violation."""
        chance = self._source.random()
        if chance < 0.6:  # noqa: PLR2004
            await self.produce(client, self._source.randint(1, 5))
        elif chance < 0.75:  # noqa: PLR2004
            await self.delete(client)
        else:
            await self.read_some(client)

    async def create_topic(self, client: WireClient, configs: dict[str, str], partitions: int = 1) -> None:
        """Creates the topic, if missing."""
        topic = CreatableTopic(
            name=self.topic,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
        )
        response = await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CREATE_TOPICS_VERSION)
        error = response.topics[0].error_code
        assert error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), ErrorCode(error)

    async def produce(self, client: WireClient, count: int) -> None:
        values = [
            b"%d-%d-%s" % (self.partition, self._serial + number, b"x" * self._source.randint(0, 200))
            for number in range(count)
        ]
        self._serial += count
        self.history.on_send(values)
        batch = build_batch([(1_700_000_000_000 + self._serial, None, value, ()) for value in values])
        data = TopicProduceData(
            name=self.topic, partition_data=[PartitionProduceData(index=self.partition, records=batch)]
        )
        response = await client.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), PRODUCE_VERSION)
        row = response.responses[0].partition_responses[0]
        if row.error_code == ErrorCode.NONE:
            self.history.on_acknowledged(row.base_offset, values)
            self.counts["produced"] += count
        elif row.error_code not in UNDECIDED:
            self._fail(f"Produce answered {ErrorCode(row.error_code).name}")

    async def bounds(self, client: WireClient) -> tuple[int, int] | None:
        """Returns log start and log end, checked; None while the partition is not ready."""
        found = []
        for timestamp in (EARLIEST, LATEST):
            row = ListOffsetsPartition(partition_index=self.partition, timestamp=timestamp)
            topic = ListOffsetsTopic(name=self.topic, partitions=[row])
            response = await client.request(
                ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic]), LIST_OFFSETS_VERSION
            )
            answer = response.topics[0].partitions[0]
            if answer.error_code in UNDECIDED:
                return None
            if answer.error_code != ErrorCode.NONE:
                self._fail(f"ListOffsets answered {ErrorCode(answer.error_code).name}")
            found.append(answer.offset)
        start, end = found
        self.history.on_bounds(start, max(start, end))
        return start, end

    async def delete(self, client: WireClient) -> None:
        """Deletes a random prefix, sometimes below the log start offset, or everything."""
        bounds = await self.bounds(client)
        if bounds is None:
            return
        start, end = bounds
        offset = self._source.randint(max(start - 3, 0), end)
        self.history.on_delete(offset)
        row = DeleteRecordsPartition(partition_index=self.partition, offset=offset)
        topic = DeleteRecordsTopic(name=self.topic, partitions=[row])
        response = await client.request(DeleteRecordsRequest(topics=[topic], timeout_ms=10_000), DELETE_RECORDS_VERSION)
        answer = response.topics[0].partitions[0]
        if answer.error_code == ErrorCode.NONE:
            self.history.on_delete_acknowledged(offset, answer.low_watermark)
            if answer.leader_log_start_offset < answer.low_watermark:
                self._fail(
                    f"the leader's log start {answer.leader_log_start_offset} is below the low watermark "
                    f"{answer.low_watermark}"
                )
            self.counts["deleted"] += 1
        elif answer.error_code not in UNDECIDED:
            self._fail(f"DeleteRecords to {offset} of [{start}, {end}] answered {ErrorCode(answer.error_code).name}")

    async def read_some(self, client: WireClient) -> None:
        """Reads from a random offset."""
        bounds = await self.bounds(client)
        if bounds is None or bounds[0] >= bounds[1]:
            return
        start = self._source.randint(bounds[0], bounds[1] - 1)
        found = await self.fetch(client, start)
        if found:
            self.history.on_read(found, start=start, end=max(found) + 1, complete=True)
            self.counts["read"] += len(found)

    async def fetch(self, client: WireClient, offset: int) -> dict[int, bytes] | None:
        """Returns the records from `offset`, as clients deliver them; None for an expected error."""
        row = FetchPartition(partition=self.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
        topic = FetchTopic(topic=self.topic, partitions=[row])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=_FETCH_BYTES, topics=[topic])
        response = await client.request(request, FETCH_VERSION)
        answer = response.responses[0].partitions[0]
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or answer.error_code in UNDECIDED:
            return None
        if answer.error_code != ErrorCode.NONE:
            self._fail(f"Fetch from {offset} answered {ErrorCode(answer.error_code).name}")
        self.history.on_bounds(answer.log_start_offset, answer.high_watermark)
        return self._records(bytes(answer.records or b""), offset)

    async def read_all(self, client: WireClient) -> tuple[int, int]:
        """Reads and checks the whole log. Returns its bounds. Waits for a partition that is not ready."""
        bounds = await self.bounds(client)
        while bounds is None:
            await asyncio.sleep(_RETRY_S)
            bounds = await self.bounds(client)
        start, end = bounds
        records: dict[int, bytes] = {}
        position = start
        while position < end:
            found = await self.fetch(client, position)
            if not found:
                self._fail(f"nothing is read at {position} of [{start}, {end})")
            records |= found or {}
            position = max(records) + 1
        self.history.on_read(records, start=start, end=end, complete=True)
        return start, end

    def _records(self, data: bytes, offset: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        try:
            for position, header in iterate_batches(data):
                end = position + header.size_bytes
                if end > len(data):
                    break
                if not check_crc(data, position, header):
                    self._fail(f"the batch at offset {header.base_offset} has a wrong CRC")
                for record in iterate_records(data[position:end], max_bytes=_MAXIMUM_DECOMPRESSED_BYTES):
                    if record.offset >= offset:
                        found[record.offset] = bytes(record.value or b"")
        except ProtocolError as error:
            self._fail(f"an answer to a fetch from {offset} is no batches: {error}")
        return found

    def _fail(self, reason: str) -> Any:
        raise HistoryError(reason)
