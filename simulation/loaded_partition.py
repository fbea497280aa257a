"""One partition of a simulated cluster with clients, and the base of its clients.

Each actor takes one step after another, over its own connections, until the run ends. Mostly it asks the leader,
sometimes any broker. An error or a lost connection leaves the outcome open, except for errors that prove that nothing
was done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from lowtide.protocol.batch_building import UnplacedRecord
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.fetch import PartitionData as FetchedPartition
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.records import BatchHeader, Record, check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import BrokerId, Offset
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_history import ClusterPartitionHistory
from lowtide.simulation.erased_history import key_of
from lowtide.simulation.history import HistoryError

if TYPE_CHECKING:
    from lowtide.simulation.machines import Machine
    from lowtide.storage.log.log import Log

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 12
LIST_OFFSETS_VERSION: Final = 7
LATEST: Final = -1
EARLIEST: Final = -2

WRITTEN_NOTHING: Final = frozenset(
    {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
"""Errors of Produce that prove that the batch is not in the log."""

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
"""Errors after which another broker may lead."""

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
    """Checks replicas and the metadata store when a delete is acknowledged."""

    def leader_epoch(self, load: LoadedPartition) -> int:
        """Returns the store's leader epoch of the partition; -1 if unknown."""
        ...

    def leads(self, load: LoadedPartition, broker_id: BrokerId) -> bool:
        """Returns whether this broker is the leader in the store."""
        ...

    def is_in_sync(self, load: LoadedPartition, broker_id: BrokerId) -> bool:
        """Returns whether this registration of the broker is in the ISR in the store."""
        ...

    def has_deleted(self, load: LoadedPartition, crc: int) -> bool:
        """Returns whether a batch with this CRC was committed, and some replica starts above it."""
        ...

    def on_delete_acknowledged(self, load: LoadedPartition, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """Notes that this broker acknowledged an ordinary delete to `offset`, sent at `sent_s`."""
        ...

    def on_leader_only_delete(self, load: LoadedPartition, broker_id: BrokerId, offset: Offset, sent_s: float) -> None:
        """Notes that a leader-only delete, sent at `sent_s`, was acknowledged."""
        ...


class LoadedPartition:
    """The shared state of one partition's actors."""

    has_deletes = True

    has_retention = False
    """Whether brokers delete its records automatically."""

    def __init__(
        self,
        topic: str,
        partition: int,
        make_client: Callable[[str], ClusterClient],
        random: Random,
        observer: DeleteObserver,
    ) -> None:
        """`make_client` creates a client for an actor's name."""
        self.topic = topic
        self.partition = partition
        self.history = ClusterPartitionHistory(f"{topic}-{partition}")
        self.counts: Counter[str] = Counter()
        self.observer = observer
        self._make_client = make_client
        self.random = random
        self._producers = 0
        self._values = 0

    def timestamp_ms(self, random: Random) -> int:
        """Returns the timestamp of a record."""
        return _TIMESTAMP_MS

    def records(self, values: list[bytes], random: Random) -> list[UnplacedRecord]:
        has_keys = self.history.erasures is not None
        return [(self.timestamp_ms(random), key_of(value) if has_keys else None, value, ()) for value in values]

    def text_of(self, record: Record) -> bytes:
        """Returns the value of a record."""
        return bytes(record.value or b"")

    def text_in_file(self, found: bytes) -> bytes:
        """Returns the text of a record, of whose value and headers `found` consists."""
        return found

    def key_of(self, text: bytes) -> bytes:
        """Returns the key of a record that erasures name."""
        return key_of(text)

    def make_client(self, name: str) -> ClusterClient:
        return self._make_client(name)

    def on_committed(self, header: BatchHeader) -> None:
        """Notes a committed batch."""

    def on_log(self, log: Log, machine: Machine) -> None:
        """Checks a replica's log after a change. Errors: HistoryError."""
        if self.history.erasures is not None:
            self.history.erasures.on_log(log, self.history.value_at, is_void=self.history.records_are_void)

    def why_not(self, start: Offset, log: Log, machine: Machine, *, knows_all: bool) -> str | None:
        """Judges a log start offset without a request. Returns what is wrong with it, or None.

        `knows_all` tells whether all committed batches were read: not after a loss, before its leader has written.
        """
        del knows_all
        return f"D7: starts at {start}, and no request lets go of more than {self.history.requested_delete}"

    def next_producer(self) -> int:
        self._producers += 1
        return self._producers

    def next_values(self, count: int, random: Random) -> list[bytes]:
        """Returns new values."""
        self._values += count
        first = self._values - count
        return [b"%d-%d-%s" % (self.partition, first + index, b"x" * random.randint(0, 120)) for index in range(count)]


class Actor:
    """One client of a partition."""

    next_offset: Offset = 0

    def __init__(self, load: LoadedPartition, client: ClusterClient, random: Random) -> None:
        self.load = load
        self.client = client
        self.random = random

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        """Takes steps until `until` is set."""
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
        """Takes one step. Errors: OSError, HistoryError."""
        raise NotImplementedError

    async def target(self) -> BrokerId:
        """Returns the broker to ask: mostly the leader."""
        if self.random.random() < 0.1:  # noqa: PLR2004 - now and then a wrong one
            return self.client.any_broker()
        return await self.client.leader(self.load.topic, self.load.partition)

    def on_error(self, what: str, code: int) -> None:
        """Handles an error. Errors: HistoryError for an unexplained one."""
        self.load.counts[f"{what} {ErrorCode(code).name}"] += 1
        if code in MOVED:
            self.client.forget(self.load.topic, self.load.partition)
        elif code not in UNDECIDED:
            raise HistoryError(f"{self.load.history.name}: {what} answered {ErrorCode(code).name}")

    async def bounds(self, broker_id: BrokerId) -> tuple[Offset, Offset] | None:
        """Returns log start and end for readers, as a leader reports them; None for an expected error."""
        load, found = self.load, []
        deleted, acknowledged = load.history.acknowledged_delete, load.history.acknowledged_end
        epoch_before = load.observer.leader_epoch(load)
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
        # A leader that has not learned of its successor, for as long as its image is young enough, lacks what that one
        # acknowledged.
        is_followed = answer.leader_epoch < epoch_before
        load.history.on_log_end(end, acknowledged_before=0 if is_followed else acknowledged)
        return start, max(start, end)

    async def fetch(
        self, broker_id: BrokerId, offset: Offset, *, max_wait_ms: int = 0
    ) -> tuple[FetchedPartition, dict[Offset, bytes]] | None:
        """Fetches once from `offset`, and checks the response; returns None for an expected error."""
        load = self.load
        deleted, erasures = load.history.acknowledged_delete, load.history.erasures
        before = None if erasures is None else (erasures.erased, erasures.moment)
        was_in_sync = load.observer.is_in_sync(load, broker_id)
        row = FetchPartition(partition=load.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
        topic = FetchTopic(topic=load.topic, partitions=[row])
        request = FetchRequest(
            max_wait_ms=max_wait_ms, min_bytes=1 if max_wait_ms else 0, max_bytes=_FETCH_BYTES, topics=[topic]
        )
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
            raise HistoryError(
                f"D6: a fetch of {load.history.name} tells {answer.log_start_offset}, {answer.high_watermark}"
            )
        try:
            records = self._records(bytes(cast("bytes", answer.records or b"")), offset)
        except ProtocolError as error:
            raise HistoryError(f"S3: {load.history.name}: what is read at {offset} is no batch: {error}") from error
        load.history.on_read(records, start=offset, deleted_before=deleted)
        if erasures is not None and before is not None:
            in_sync = was_in_sync and load.observer.is_in_sync(load, broker_id)
            erasures.check_read(records, erased=before[0], moment=before[1], in_sync=in_sync)
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
            for record in (
                () if header.is_control else iterate_records(data[position:end], max_bytes=_DECOMPRESSED_BYTES_MAX)
            ):
                if record.offset >= offset:
                    found[record.offset] = self.load.text_of(record)
                    erasures = self.load.history.erasures
                    if erasures is not None and record.key != erasures.key_of(found[record.offset]):
                        raise HistoryError(f"E2: {self.load.history.name}: {record.key!r} is at {record.offset}")
        return found


def rows(values: list[bytes]) -> list[UnplacedRecord]:
    """Returns records of these values."""
    return [(_TIMESTAMP_MS, None, value, ()) for value in values]
