"""Sends the requests of a run, each once to one broker, and records them as operations.

A retry would hide what an answer promised, so there is none. An error that says that nothing was done makes an
operation refused; after every other error, and without an answer, what was done is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from lowtide.admin.erasing import PartitionErasure
from lowtide.admin.errors import AdminError, AuthenticationFailedError, ConnectionFailedError, code_name
from lowtide.admin.records import NAMES_UNTIL
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.records import check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import BrokerId, Offset, TopicPartition
from lowtide.verification.operations import (
    FOREIGN,
    NOT_SENT,
    DeleteOperation,
    EraseOperation,
    OffsetsOperation,
    PartitionOperation,
    ProduceOperation,
    ReadOperation,
    Result,
    person_of,
)

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.protocol.primitives import Buffer
    from lowtide.runtime.clock import Clock
    from lowtide.verification.history import OperationHistory

TIMEOUT_S: Final = 10.0
"""How long a request may take."""

BROKER_MS: Final = 8_000
"""How long a broker may hold a produce or a delete."""

READ_BYTES: Final = 64 << 10
FOLLOWERS_SINCE: Final = 11
"""The first version of Fetch that followers answer (KIP-392)."""

BATCH_BYTES_MAX: Final = 1 << 20

ALL_IN_SYNC: Final = -1
EARLIEST: Final = -2
CONSUMER: Final = -1

REFUSED_PRODUCE: Final = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.POLICY_VIOLATION,
    }
)
REFUSED_DELETE: Final = frozenset(
    {ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.POLICY_VIOLATION}
)
REFUSED_READ: Final = frozenset({ErrorCode.OFFSET_OUT_OF_RANGE})
"""The errors that say that nothing was done, or that nothing is readable at an offset."""

_VALUE_MULTIPLIER: Final = 37
_VALUE_BYTES_MAX: Final = 300

O = TypeVar("O", bound=PartitionOperation)  # noqa: E741  an operation


def key_of(person: int) -> bytes:
    """Returns the key of a person's records."""
    return b"person %d" % person


def value_of(partition: TopicPartition, serial: int) -> bytes:
    """Returns the value of a record; each is sent once."""
    padding = b"x" * (serial * _VALUE_MULTIPLIER % _VALUE_BYTES_MAX)
    return b"%s/%d/%d/%s" % (partition.topic.encode(), partition.partition, serial, padding)


def serial_of(partition: TopicPartition, value: bytes | None, sent: int) -> int:
    """Returns the serial number of a value, or `FOREIGN` unless it is exactly one of the first `sent`."""
    fields = (value or b"").split(b"/", 3)
    if len(fields) == 4 and fields[2].isdigit() and len(fields[2]) < 19:  # noqa: PLR2004  the parts of a value
        serial = int(fields[2])
        if serial < sent and value == value_of(partition, serial):
            return serial
    return FOREIGN


class RecordedRequests:
    """The requests of a run. Each method returns the operation, which `history` has then judged."""

    def __init__(self, client: AdminClient, history: OperationHistory, clock: Clock) -> None:
        self.client = client
        self.history = history
        self._clock = clock
        self._begun_ms = clock.monotonic_ms()
        self._sent = dict.fromkeys(history.judges, 0)

    def now_ms(self) -> int:
        """Returns the time since the beginning of the run."""
        return self._clock.monotonic_ms() - self._begun_ms

    async def produce(self, partition: TopicPartition, broker: BrokerId, count: int) -> ProduceOperation:
        """Writes new records with acks=all."""
        first = self._sent[partition]
        self._sent[partition] += count
        now = self._clock.wall_ms()
        records = [
            (now, key_of(person_of(serial)), value_of(partition, serial), ()) for serial in range(first, first + count)
        ]
        data = PartitionProduceData(index=partition.partition, records=build_batch(records))
        request = ProduceRequest(
            acks=ALL_IN_SYNC,
            timeout_ms=BROKER_MS,
            topic_data=[TopicProduceData(name=partition.topic, partition_data=[data])],
        )
        operation = ProduceOperation(
            partition=partition, broker=broker, process="producer", first_serial=first, count=count
        )
        row = await self._ask(operation, request, lambda answer: answer.responses[0].partition_responses[0])
        if row is not None:
            operation.base_offset = row.base_offset
            _set_result(operation, row.error_code, REFUSED_PRODUCE)
        return self._completed(operation)

    async def delete(self, partition: TopicPartition, broker: BrokerId, offset: Offset) -> DeleteOperation:
        """Deletes the records below an offset."""
        rows = [DeleteRecordsPartition(partition_index=partition.partition, offset=offset)]
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=partition.topic, partitions=rows)], timeout_ms=BROKER_MS
        )
        operation = DeleteOperation(partition=partition, broker=broker, process="deleter", offset=offset)
        row = await self._ask(operation, request, lambda answer: answer.topics[0].partitions[0])
        if row is not None:
            operation.low_watermark = row.low_watermark
            _set_result(operation, row.error_code, REFUSED_DELETE)
        return self._completed(operation)

    async def read(
        self, partition: TopicPartition, broker: BrokerId, start: Offset, *, leader: bool, expected_end: Offset = -1
    ) -> ReadOperation:
        """Fetches from a replica as a consumer does. `expected_end`: as in `ReadOperation`."""
        row_asked = FetchPartition(partition=partition.partition, fetch_offset=start, partition_max_bytes=READ_BYTES)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=READ_BYTES,
            topics=[FetchTopic(topic=partition.topic, partitions=[row_asked])],
        )
        operation = ReadOperation(
            partition=partition, broker=broker, process="reader", start=start, leader=leader, expected_end=expected_end
        )
        at_least = 0 if leader else FOLLOWERS_SINCE
        row = await self._ask(
            operation, request, lambda answer: answer.responses[0].partitions[0], at_least=at_least, waits=False
        )
        if row is not None:
            operation.log_start = row.log_start_offset
            _set_result(operation, row.error_code, REFUSED_READ)
            operation.end = start
            if operation.result is Result.OK:
                self._read_batches(operation, row.records)
        return self._completed(operation)

    async def list_earliest(self, partition: TopicPartition, leader: BrokerId) -> OffsetsOperation:
        """Asks where the log starts."""
        rows = [ListOffsetsPartition(partition_index=partition.partition, timestamp=EARLIEST)]
        request = ListOffsetsRequest(
            replica_id=CONSUMER, topics=[ListOffsetsTopic(name=partition.topic, partitions=rows)]
        )
        operation = OffsetsOperation(partition=partition, broker=leader, process="reader")
        row = await self._ask(operation, request, lambda answer: answer.topics[0].partitions[0], waits=False)
        if row is not None:
            _set_result(operation, row.error_code, frozenset())
            operation.log_start = row.offset if operation.result is Result.OK else -1
        return self._completed(operation)

    async def erase(self, partition: TopicPartition, leader: BrokerId, person: int) -> EraseOperation:
        """Erases the records of a person, on Lowtide. It is done when the erasure is committed."""
        operation = EraseOperation(partition=partition, broker=leader, process="eraser", person=person)
        self.history.invoke(operation, self.now_ms())
        try:
            found = (await self.client.erase_records([partition], keys=[key_of(person)], timeout=3 * TIMEOUT_S))[
                partition
            ]
        except AdminError as error:
            found = error
        if isinstance(found, PartitionErasure):
            operation.result, operation.searched_to = Result.OK, found.searched_to
        else:
            operation.error = _reason(found)
        return self._completed(operation)

    async def _ask(
        self, operation: PartitionOperation, request: Any, row_of: Any, *, at_least: int = 0, waits: bool = True
    ) -> Any:
        """Returns the partition's row of the answer; None, with the error in the operation, if there is none.

        Errors: AuthenticationFailedError.
        """
        self.history.invoke(operation, self.now_ms())
        call = self.client.call(TIMEOUT_S)
        at_most = NAMES_UNTIL if isinstance(request, FetchRequest | ProduceRequest) else None
        try:
            answer = await call.ask(operation.broker, request, waits=waits, at_least=at_least, at_most=at_most)
            return row_of(answer)
        except IndexError:
            operation.error = "an answer without the partition"
        except AuthenticationFailedError:
            raise
        except ConnectionFailedError as error:
            if not error.was_sent and not isinstance(operation, ReadOperation):
                operation.result = Result.REFUSED
            operation.error = "connection lost" if error.was_sent else NOT_SENT
        except AdminError as error:
            operation.error = _reason(error)
        return None

    def _completed(self, operation: O) -> O:
        self.history.complete(operation, self.now_ms())
        return operation

    def _read_batches(self, operation: ReadOperation, records: Buffer | None) -> None:
        """Takes the records of a fetch from its start on. A batch that cannot be read makes its result unknown."""
        partition, sent, found = operation.partition, self._sent[operation.partition], list[tuple[Offset, int]]()
        try:
            for position, header in iterate_batches(records or b""):
                operation.end = max(operation.end, header.next_offset)
                if not header.is_control:
                    batch = memoryview(records or b"")[position : position + header.size_bytes]
                    found += [
                        (record.offset, serial_of(partition, record.value, sent))
                        for record in iterate_records(batch, max_bytes=BATCH_BYTES_MAX)
                        if record.offset >= operation.start
                    ]
            if not all(check_crc(records or b"", *each) for each in iterate_batches(records or b"")):
                operation.result, operation.error = Result.UNKNOWN, "unreadable batch: its CRC is wrong"
                return
        except ProtocolError as error:
            operation.result, operation.error = Result.UNKNOWN, f"unreadable batch: {error}"
            return
        operation.records = tuple(found)


def _set_result(operation: PartitionOperation, code: int, refused: frozenset[ErrorCode]) -> None:
    if code == ErrorCode.NONE:
        operation.result = Result.OK
        return
    operation.error = code_name(code)
    operation.result = Result.REFUSED if code in refused else Result.UNKNOWN


def _reason(error: AdminError) -> str:
    """Returns a short reason without addresses, by which operations are counted."""
    return code_name(error.code) if hasattr(error, "code") and error.code is not None else type(error).__name__
