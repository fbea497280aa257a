"""What clients asked of one partition and what they were answered: the history that `judge` decides over.

Each operation has two moments: its invocation and its return. An operation happened before another one only if it
returned before the other was invoked; all others are concurrent. Moments are numbered, because two may share a
millisecond.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset, TopicPartition

PERSONS: Final = 20
"""The number of different keys. An erasure names one of them."""

NOT_SENT: Final = "not sent: no connection"
"""The error of an operation that never reached its broker."""

FOREIGN: Final = -1
"""Stands for a value that this run did not send to the partition."""


class Moment(NamedTuple):
    """A place in the history, and its time in milliseconds since the beginning of the run."""

    number: int
    at_ms: int


class Result(StrEnum):
    """What a client knows after an operation."""

    OK = "ok"
    REFUSED = "refused"
    """The answer says that nothing was done."""
    UNKNOWN = "unknown"
    """No answer, or one that leaves open what was done."""


class PartitionOperation(msgspec.Struct, kw_only=True):
    """One request about one partition, sent once to one broker."""

    partition: TopicPartition
    broker: BrokerId
    process: str
    """The client, such as `deleter`: it has one operation at a time in each partition."""
    invoked: Moment = Moment(0, 0)
    returned: Moment | None = None
    result: Result = Result.UNKNOWN
    error: str = ""
    """Kafka's name of an error code, or why there was no answer."""


class ProduceOperation(PartitionOperation, kw_only=True):
    """Records with the serial numbers from `first_serial` on, acks=all."""

    first_serial: int
    count: int
    base_offset: Offset = UNKNOWN_OFFSET


class DeleteOperation(PartitionOperation, kw_only=True):
    """DeleteRecords to an offset, exclusive. The low watermark is the one in the answer."""

    offset: Offset
    low_watermark: Offset = UNKNOWN_OFFSET


class ReadOperation(PartitionOperation, kw_only=True):
    """A fetch from an offset, by a consumer: records below it, which are in the same batch, are dropped."""

    start: Offset
    end: Offset = UNKNOWN_OFFSET
    """The exclusive end of the batches in the answer; `start` if there are none."""
    records: tuple[tuple[Offset, int], ...] = ()
    """Offsets and serial numbers; `FOREIGN` for values that were never sent."""
    log_start: Offset = UNKNOWN_OFFSET
    leader: bool = True
    """Whether the broker was asked as the leader, rather than as a follower (KIP-392)."""
    expected_end: Offset = UNKNOWN_OFFSET
    """If known, the records up to this offset, exclusive, should have been readable: the replica was in sync, and the
    client had waited."""


class OffsetsOperation(PartitionOperation, kw_only=True):
    """ListOffsets: the earliest offset of the leader."""

    log_start: Offset = UNKNOWN_OFFSET


class EraseOperation(PartitionOperation, kw_only=True):
    """Erases the records of one key, on Lowtide."""

    person: int
    searched_to: Offset = UNKNOWN_OFFSET
    """Exclusive: the log end when the leader searched."""


class FaultOperation(msgspec.Struct, kw_only=True):
    """One run of the user's command. `exit_code` is None if it runs, was killed, or could not be started."""

    number: int
    invoked: Moment
    returned: Moment | None = None
    exit_code: int | None = None
    error: str = ""


AnyOperation: TypeAlias = PartitionOperation | FaultOperation


def person_of(serial: int) -> int:
    """Returns the person whose key a record has."""
    return serial % PERSONS


def offsets_text(first: Offset, last: Offset) -> str:
    """Returns a range for people, both ends inclusive: `offset 7`, `offsets 7 to 9`."""
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def sentence_of(operation: AnyOperation) -> str:
    """Returns a line for people: what was asked, and what was answered."""
    if isinstance(operation, FaultOperation):
        ended = operation.error or f"exit code {operation.exit_code}"
        if operation.returned is None:
            ended = "not ended yet"
        return f"fault command, round {operation.number}: {ended}"
    asked, answered = _asked_and_answered(operation)
    if operation.returned is None:
        answered = "not answered yet"
    elif operation.error:
        answered = operation.error
    return f"broker {operation.broker}: {asked}: {answered}"


def _asked_and_answered(operation: PartitionOperation) -> tuple[str, str]:
    if isinstance(operation, ProduceOperation):
        base = operation.base_offset
        return f"produce {operation.count}", offsets_text(base, base + operation.count - 1)
    if isinstance(operation, DeleteOperation):
        return f"delete below {operation.offset}", f"ok, low watermark {operation.low_watermark}"
    if isinstance(operation, OffsetsOperation):
        return "list offsets", f"the log starts at {operation.log_start}"
    if isinstance(operation, EraseOperation):
        return f"erase person {operation.person}", f"ok, searched below {operation.searched_to}"
    assert isinstance(operation, ReadOperation), operation
    asked = f"fetch from {operation.start}{'' if operation.leader else ' as a follower'}"
    started = "" if operation.log_start < 0 else f", the log starts at {operation.log_start}"
    if not operation.records:
        return asked, f"nothing{started}"
    return asked, f"{offsets_text(operation.records[0][0], operation.records[-1][0])}{started}"
