"""Producers, deleters and readers of one partition of a simulated cluster, who keep the history that `cluster_history` judges.

Each actor does one thing after the other, over connections of its own, until the run ends. Mostly it asks the leader, now and then
any broker. An error or a lost connection leaves the outcome open, but for the few errors that say that nothing was done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_records import (
    TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.fetch import PartitionData as FetchedPartition
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from lowtide.protocol.records import BatchHeader, Record, UnplacedRecord, build_batch, check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import BrokerId, Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_history import ClusterPartitionHistory
from lowtide.simulation.history import HistoryError

if TYPE_CHECKING:
    from lowtide.simulation.machines import Machine
    from lowtide.storage.log.log import Log

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
LATEST: Final = -1
EARLIEST: Final = -2

WRITTEN_NOTHING: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
"""Errors of Produce that say that the batch isn't in the log."""

MOVED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""The errors after which another broker may lead."""

UNDECIDED: Final = MOVED | {
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}

_TIMESTAMP_MS: Final = 1_700_000_000_000
_DECOMPRESSED_BYTES_MAX: Final = 1 << 24
_FETCH_BYTES: Final = 1 << 20
_RETRY_S: Final = 0.05
_SHORT_TIMEOUT_MS: Final = 300
_TIMEOUT_MS: Final = 3000


class DeleteObserver(Protocol):
    """Who looks at the replicas when a delete was acknowledged."""

    def on_delete_acknowledged(self, load: PartitionLoad, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """An ordinary delete to `offset` was acknowledged by this broker; it was asked for at `sent_s`."""
        ...

    def on_leader_only_delete(self, load: PartitionLoad, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """A delete of the leader only was acknowledged; it was asked for at `sent_s`."""
        ...


class PartitionLoad:
    """What all actors of one partition share."""

    has_deletes = True
    """Whether clients may delete its records."""

    def __init__(
        self, topic: str, partition: int, make_client: Callable[[str], ClusterClient], random: Random, observer: DeleteObserver
    ) -> None:
        """`make_client` gives an actor its client, by the actor's name."""
        self.topic = topic
        self.partition = partition
        self.history = ClusterPartitionHistory(f"{topic}-{partition}")
        self.counts: Counter[str] = Counter()
        self.observer = observer
        self._make_client = make_client
        self.random = random
        self._producers = 0
        self._values = 0

    def actors(self, kinds: tuple[str, ...]) -> list[Actor]:
        """One actor of each kind."""
        classes: dict[str, type[Actor]] = {
            "producer": Producer,
            "idempotent producer": IdempotentProducer,
            "deleter": Deleter,
            "reader": Reader,
        }
        made = []
        for index, kind in enumerate(kinds):
            client = self._make_client(f"{kind.split()[0][:6]} {self.partition}.{index}")
            made.append(classes[kind](self, client, Random(self.random.getrandbits(64))))
        return made

    def timestamp_ms(self, random: Random) -> int:
        """When a record is from."""
        return _TIMESTAMP_MS

    def records(self, values: list[bytes], random: Random) -> list[UnplacedRecord]:
        """What is sent for values."""
        return [(self.timestamp_ms(random), None, value, ()) for value in values]

    def text_of(self, record: Record) -> bytes:
        """The value that a record was sent for."""
        return bytes(record.value or b"")

    def make_reader(self, client: ClusterClient, random: Random) -> Reader:
        """One who reads whole logs."""
        return Reader(self, client, random)

    def make_client(self, name: str) -> ClusterClient:
        """One more."""
        return self._make_client(name)

    def on_committed(self, header: BatchHeader) -> None:
        """A batch is committed that wasn't known."""

    def on_log(self, log: Log, machine: Machine) -> None:
        """A replica's log has changed, and was looked at."""

    def why_not(self, start: Offset, log: Log, machine: Machine) -> str | None:
        """A replica starts at `start`, which no request asks for. Returns what is wrong with that, if anything is."""
        return f"D7: starts at {start}, and no request lets go of more than {self.history.requested_delete}"

    def next_producer(self) -> int:
        """A number for a producer."""
        self._producers += 1
        return self._producers

    def next_values(self, count: int, random: Random) -> list[bytes]:
        """Values that no client has sent before."""
        self._values += count
        first = self._values - count
        return [b"%d-%d-%s" % (self.partition, first + index, b"x" * random.randint(0, 120)) for index in range(count)]


class Actor:
    """One client of a partition."""

    next_offset: Offset = 0
    """Behind what was read last."""

    def __init__(self, load: PartitionLoad, client: ClusterClient, random: Random) -> None:
        self.load = load
        self.client = client
        self.random = random

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Do one step after the other, until `until` is set."""
        while not until.is_set():
            try:
                await self.step()
            except OSError:
                self.load.counts["lost"] += 1
                self.client.forget(self.load.topic, self.load.partition)
                await asyncio.sleep(_RETRY_S)
            except HistoryError as error:
                self.client.chronicle.violate(str(error))
                break
            await asyncio.sleep(self.random.random() * pause_s)
        self.client.close()

    async def step(self) -> None:
        """One thing. Errors: OSError, HistoryError."""
        raise NotImplementedError

    async def target(self) -> BrokerId:
        """Whom to ask: mostly the leader."""
        if self.random.random() < 0.1:  # noqa: PLR2004 - now and then a wrong one
            return self.client.any_broker()
        return await self.client.leader(self.load.topic, self.load.partition)

    def on_error(self, what: str, code: int) -> None:
        """An answer says that it couldn't be done. Errors: HistoryError for an answer that nothing explains."""
        self.load.counts[f"{what} {ErrorCode(code).name}"] += 1
        if code in MOVED:
            self.client.forget(self.load.topic, self.load.partition)
        elif code not in UNDECIDED:
            raise HistoryError(f"{self.load.history.name}: {what} answered {ErrorCode(code).name}")

    async def bounds(self, broker_id: BrokerId) -> tuple[Offset, Offset] | None:
        """Log start and the end for readers, as a leader tells them; None with an error that may be."""
        load, found = self.load, []
        deleted, acknowledged = load.history.acknowledged_delete, load.history.acknowledged_end
        for timestamp in (EARLIEST, LATEST):
            row = ListOffsetsPartition(partition_index=load.partition, timestamp=timestamp)
            topic = ListOffsetsTopic(name=load.topic, partitions=[row])
            request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[topic])
            response = await self.client.ask(broker_id, request, LIST_OFFSETS_VERSION, timeout_ms=0)
            answer = response.topics[0].partitions[0]
            if answer.error_code != ErrorCode.NONE:
                self.on_error("ListOffsets", answer.error_code)
                return None
            found.append(answer.offset)
        start, end = found
        load.history.on_log_start(start, deleted_before=deleted)
        load.history.on_log_end(end, acknowledged_before=acknowledged)
        return start, max(start, end)

    async def fetch(
        self, broker_id: BrokerId, offset: Offset, *, max_wait_ms: int = 0
    ) -> tuple[FetchedPartition, dict[Offset, bytes]] | None:
        """One answer from `offset` on, checked; None with an error that may be."""
        load = self.load
        deleted = load.history.acknowledged_delete
        row = FetchPartition(partition=load.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
        topic = FetchTopic(topic=load.topic, partitions=[row])
        request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1 if max_wait_ms else 0, max_bytes=_FETCH_BYTES, topics=[topic])
        response = await self.client.ask(broker_id, request, FETCH_VERSION, timeout_ms=max_wait_ms)
        answer: FetchedPartition = response.responses[0].partitions[0]
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            load.counts["Fetch OFFSET_OUT_OF_RANGE"] += 1
            if answer.log_start_offset >= 0:
                load.history.on_log_start(answer.log_start_offset, deleted_before=0)
            return None
        if answer.error_code != ErrorCode.NONE:
            self.on_error("Fetch", answer.error_code)
            return None
        load.history.on_log_start(answer.log_start_offset, deleted_before=deleted)
        if not answer.log_start_offset <= answer.high_watermark:
            raise HistoryError(f"D6: a fetch of {load.history.name} tells {answer.log_start_offset}, {answer.high_watermark}")
        records = self._records(bytes(cast("bytes", answer.records or b"")), offset)
        load.history.on_read(records, start=offset, deleted_before=deleted)
        return answer, records

    def _records(self, data: bytes, offset: Offset) -> dict[Offset, bytes]:
        found: dict[Offset, bytes] = {}
        self.next_offset = offset
        for position, header in iterate_batches(data):
            end = position + header.size_bytes
            if end > len(data):
                break
            if not check_crc(data, position, header):
                raise HistoryError(f"S3: {self.load.history.name}: the batch at {header.base_offset} has a wrong CRC")
            self.next_offset = max(self.next_offset, header.next_offset)
            for record in () if header.is_control else iterate_records(data[position:end], max_bytes=_DECOMPRESSED_BYTES_MAX):
                if record.offset >= offset:
                    found[record.offset] = self.load.text_of(record)
        return found


class Producer(Actor):
    """Sends each batch once, with acks=all or acks=1."""

    def __init__(self, load: PartitionLoad, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self.producer = load.next_producer()
        self._serial = 0

    async def step(self) -> None:
        load = self.load
        count = self.random.randint(1, 4)
        values = load.next_values(count, self.random)
        acks = -1 if self.random.random() < 0.8 else 1  # noqa: PLR2004 - mostly all
        broker_id = await self.target()
        load.history.on_send(values, self.producer, self._serial, ordered=False)
        self._serial += count
        row = await self.send(broker_id, build_batch(load.records(values, self.random)), acks)
        if row.error_code == ErrorCode.NONE:
            load.counts["produced" if acks < 0 else "produced acks=1"] += count
            self.client.note(f"produced {count} at {row.base_offset} of {load.history.name}, acks={acks}, broker {broker_id}")
            if acks < 0:
                load.history.on_acknowledged(row.base_offset, values)
        elif row.error_code in WRITTEN_NOTHING:
            load.history.on_refused(values)
            load.counts["refused"] += count
        else:
            self.on_error("Produce", row.error_code)

    async def send(self, broker_id: BrokerId, batch: bytes, acks: int) -> PartitionProduceResponse:
        """One request and its answer."""
        load = self.load
        timeout_ms = _SHORT_TIMEOUT_MS if self.random.random() < 0.2 else _TIMEOUT_MS  # noqa: PLR2004
        data = TopicProduceData(name=load.topic, partition_data=[PartitionProduceData(index=load.partition, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[data])
        response = await self.client.ask(broker_id, request, PRODUCE_VERSION, timeout_ms=timeout_ms)
        row: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return row


class IdempotentProducer(Producer):
    """Sends each batch until it knows what became of it, as clients with idempotence do."""

    def __init__(self, load: PartitionLoad, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._id = -1
        self._epoch = -1
        self._sequence = 0
        self._unsettled: tuple[list[bytes], bytes] | None = None

    async def step(self) -> None:
        if self._id < 0:
            await self._begin()
            return
        load = self.load
        broker_id = await self.target()
        if self._unsettled is None:
            values = load.next_values(self.random.randint(1, 4), self.random)
            load.history.on_send(values, self.producer, self._serial, ordered=True)
            self._serial += len(values)
            records = load.records(values, self.random)
            batch = build_batch(records, producer_id=self._id, producer_epoch=self._epoch, base_sequence=self._sequence)
            self._unsettled = values, batch
        values, batch = self._unsettled
        row = await self.send(broker_id, batch, -1)
        if row.error_code in {ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}:
            self._unsettled = None
            self._sequence += len(values)
            load.counts["produced idempotently"] += len(values)
            if row.error_code == ErrorCode.NONE and row.base_offset >= 0:
                self.client.note(f"produced {len(values)} at {row.base_offset} of {load.history.name}, idempotent, broker {broker_id}")
                load.history.on_acknowledged(row.base_offset, values)
        elif row.error_code in {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}:
            if not load.history.records_are_void:
                name = ErrorCode(row.error_code).name
                raise HistoryError(f"R1: {load.history.name}: broker {broker_id} answers {name} to an idempotent producer's next batch")
            self._id, self._unsettled = -1, None
        elif row.error_code != ErrorCode.NOT_ENOUGH_REPLICAS:
            self.on_error("Produce", row.error_code)

    async def _begin(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        answer = await self.client.ask(self.client.any_broker(), request, 4, timeout_ms=_TIMEOUT_MS * 4)
        if answer.error_code == ErrorCode.NONE:
            self.producer = self.load.next_producer()
            self._id, self._epoch, self._sequence = answer.producer_id, answer.producer_epoch, 0


class Deleter(Actor):
    """Deletes prefixes: ordinarily or of the leader only, of all, at and below the log start, and again what timed out."""

    def __init__(self, load: PartitionLoad, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._again: Offset | None = None

    async def step(self) -> None:
        broker_id = await self.target()
        offset: Offset | None = self._again
        if offset is None:
            found = await self.bounds(broker_id)
            if found is None:
                return
            start, end = found
            everything = self.random.random() < 0.1  # noqa: PLR2004 - now and then
            offset = None if everything else self.random.randint(max(start - 3, 0), start + (end - start) // 2)
        version = self.random.choice((1, 2, 3, 3))
        leader_only = version >= 3 and self.random.random() < 0.25  # noqa: PLR2004
        timeout_ms = self.random.choice((0, _SHORT_TIMEOUT_MS, _TIMEOUT_MS, _TIMEOUT_MS))
        await self.delete(broker_id, offset, version=version, leader_only=leader_only, timeout_ms=timeout_ms)

    async def delete(self, broker_id: BrokerId, offset: Offset | None, *, version: int, leader_only: bool, timeout_ms: int) -> int:
        """One delete. Returns the answer's error code."""
        load = self.load
        load.history.on_delete(offset)
        row = DeleteRecordsPartition(partition_index=load.partition, offset=TO_HIGH_WATERMARK if offset is None else offset)
        topic = DeleteRecordsTopic(name=load.topic, partitions=[row])
        request = DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms, leader_only=leader_only)
        sent_s = asyncio.get_running_loop().time()
        self._again = offset
        response = await self.client.ask(broker_id, request, version, timeout_ms=timeout_ms + _COMMIT_GRACE_MS)
        answer = response.topics[0].partitions[0]
        what = f"deleted to {offset} of {load.history.name}{', leader only' if leader_only else ''}, broker {broker_id}"
        self.client.note(f"{what}, asked at {sent_s:.4f}: {ErrorCode(answer.error_code).name}, low watermark {answer.low_watermark}")
        if answer.error_code == ErrorCode.NONE:
            self._again = None
            load.counts["deleted, leader only" if leader_only else "deleted"] += 1
            self._on_success(broker_id, offset, answer, sent_s, leader_only=leader_only)
        elif answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._again = None
            load.counts["delete OFFSET_OUT_OF_RANGE"] += 1  # The high watermark of a new leader may be behind.
        else:
            if self.random.random() < 0.5:  # noqa: PLR2004 - the other half is asked for again
                self._again = None
            self.on_error("DeleteRecords", answer.error_code)
        return int(answer.error_code)

    def _on_success(
        self, broker_id: BrokerId, offset: Offset | None, answer: DeleteRecordsPartitionResult, sent_s: float, *, leader_only: bool
    ) -> None:
        load = self.load
        if leader_only:
            known = answer.leader_log_start_offset if offset is None else offset
            if answer.leader_log_start_offset < known:
                raise HistoryError(f"D3: {load.history.name}: LeaderOnly to {offset} answered the log start {known}")
            load.observer.on_leader_only_delete(load, broker_id, known, sent_s)
        else:
            deleted = load.history.on_delete_acknowledged(offset, answer.low_watermark, sent_s)
            load.observer.on_delete_acknowledged(load, broker_id, deleted, sent_s)


class Reader(Actor):
    """Reads from the leader and from followers, from anywhere or on from where it was."""

    def __init__(self, load: PartitionLoad, client: ClusterClient, random: Random) -> None:
        super().__init__(load, client, random)
        self._position = 0

    async def step(self) -> None:
        load = self.load
        chance = self.random.random()
        broker_id = self.client.any_broker() if chance < 0.5 else await self.target()  # noqa: PLR2004 - any: a follower (KIP-392)
        if chance < 0.15:  # noqa: PLR2004
            least = max(0, load.history.acknowledged_delete - 5)
            self._position = self.random.randint(least, max(load.history.acknowledged_end, least + 1))
        elif chance > 0.9:  # noqa: PLR2004
            found = await self.bounds(broker_id)
            if found is not None:
                self._position = found[0]
        answer = await self.fetch(broker_id, self._position, max_wait_ms=self.random.choice((0, 0, 100)))
        if answer is None:
            self._position = max(self._position, load.history.acknowledged_delete)
        elif answer[1]:
            load.counts["read"] += len(answer[1])
            self._position = max(answer[1]) + 1

    async def read_all(self, broker_id: BrokerId) -> tuple[Offset, Offset] | None:
        """Read the whole log of a leader. Returns its bounds, or None when it doesn't lead."""
        found = await self.bounds(broker_id)
        if found is None:
            return None
        position, end = found
        while position < end:
            answer = await self.fetch(broker_id, position)
            if answer is None:
                return None
            if not answer[1]:
                raise HistoryError(f"R3: {self.load.history.name}: nothing is read at {position} of {found}")
            position = max(answer[1]) + 1
        return found


_COMMIT_GRACE_MS: Final = 500
"""What a broker's own disk may take beyond a delete's timeout."""


def rows(values: list[bytes]) -> list[UnplacedRecord]:
    """Records of these values."""
    return [(_TIMESTAMP_MS, None, value, ()) for value in values]
