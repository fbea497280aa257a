"""One partition of a coordinator's topic that this broker leads: its state, and what waits for its records to be committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from lowtide.broker.coordinator.runtime.effects import Effects, Then
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.group_records import decode_record
from lowtide.protocol.plain_batches import encode_plain_batch
from lowtide.protocol.records import (
    CRC_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    RECORD_BATCH_OVERHEAD,
    TRANSACTIONAL_BIT,
)
from lowtide.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from lowtide.replication.partition import Partition
from lowtide.storage.log.validator import ValidatedBatch

assert LOG_OVERHEAD < MAGIC_POSITION < CRC_POSITION < RECORD_BATCH_OVERHEAD

RECORD_OVERHEAD: Final = 36
"""More than a record takes besides its key and value: its length, attributes, deltas, the lengths of both, no headers."""


class CoordinatorSettings(Protocol):
    """What the runtime must know."""

    @property
    def commit_timeout_ms(self) -> int: ...
    @property
    def load_buffer_bytes(self) -> int: ...


class CoordinatorState(Protocol):
    """What is coordinated: pure, and changed by records only."""

    @property
    def settings(self) -> CoordinatorSettings: ...
    @property
    def timers(self) -> Timers[Any]: ...
    @property
    def count(self) -> int:
        """How much of it there is, for the log."""
        ...

    def apply(self, change: Any, offset: Offset) -> None:
        """Take over what a record of the log says that is being loaded, or a marker (`in_transaction`).

        Errors: ProtocolError.
        """
        ...

    def note(self, change: Any, offset: Offset) -> None:
        """Take over what a record says that was just appended, or a marker."""
        ...

    def on_loaded(self, effects: Effects) -> None:
        """All records are applied."""
        ...

    def on_unloaded(self, effects: Effects) -> None:
        """Another broker coordinates it now."""
        ...

    def on_timer(self, key: Any, effects: Effects) -> None:
        """Something is due."""
        ...


S = TypeVar("S", bound=CoordinatorState)

Decode: TypeAlias = Callable[[bytes | None, bytes | None], Any]
"""What a state understands out of a record's key and value; None for a record of an unknown type. Errors: ProtocolError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedTopic(Generic[S]):
    """A topic of coordinators: its name, what makes the state of a partition, and what reads its records."""

    name: str
    make_state: Callable[[], S]
    decode: Decode = decode_record


class Waiting(msgspec.Struct):
    """What continues when the log is committed up to `end_offset` (exclusive), or fails at the deadline (monotonic milliseconds)."""

    end_offset: Offset
    deadline_ms: int
    then: list[Then]


class Shard(Generic[S]):
    """The state of one coordinator's partition.

    It belongs to one leadership (`Partition.led_since`): another one has a new state.
    """

    __slots__ = (
        "is_asking",
        "led_since",
        "loaded",
        "number",
        "partition",
        "records_left_aside",
        "records_loaded",
        "state",
        "unloaded",
        "waiting",
    )

    def __init__(self, number: int, partition: Partition, state: S) -> None:
        self.number = number
        self.partition = partition
        self.led_since: LeaderEpoch = partition.led_since
        self.state = state
        """What is coordinated: the groups of this partition, or its transactions."""
        self.loaded = False
        self.unloaded = False
        self.records_loaded = 0
        self.records_left_aside = 0
        self.waiting: deque[Waiting] = deque()
        """In the order of their offsets."""
        self.is_asking = False
        """Whether the partition has been asked to say when the first of them is committed."""

    @property
    def leads(self) -> bool:
        """Whether this broker still leads the partition, by the leadership that this state is of."""
        partition = self.partition
        return partition.led_since == self.led_since and partition.is_leader and not partition.log.offline

    @property
    def commits_at_once(self) -> bool:
        """Whether what is appended is committed with that, as far as can be said before: there is no other replica, and none waits."""
        return self.partition.leadership is None and not self.waiting and not self.unloaded

    def wait(self, end_offset: Offset, deadline_ms: int, then: list[Then]) -> None:
        """Continue when the log is committed up to there, after those that wait already."""
        if self.waiting:
            end_offset = max(end_offset, self.waiting[-1].end_offset)
        self.waiting.append(Waiting(end_offset, deadline_ms, then))


def split_batches(records: Sequence[CoordinatorRecord], max_bytes: int) -> list[Sequence[CoordinatorRecord]] | None:
    """The records as batches of at most `max_bytes` each; None if one alone is larger."""
    sizes = [len(key) + len(value or b"") + RECORD_OVERHEAD for key, value in records]
    room = max_bytes - RECORD_BATCH_OVERHEAD
    if sum(sizes) <= room:
        return [records]
    batches: list[Sequence[CoordinatorRecord]] = []
    start = size = 0
    for index, record_size in enumerate(sizes):
        if record_size > room:
            return None
        if size + record_size > room:
            batches.append(records[start:index])
            start, size = index, 0
        size += record_size
    batches.append(records[start:])
    return batches


def make_batches(
    records: Sequence[CoordinatorRecord],
    wall_ms: int,
    producer: tuple[ProducerId, ProducerEpoch] | None,
    max_bytes: int,
) -> list[ValidatedBatch]:
    """The records as one batch, or as several where that would have more than `max_bytes`.

    None at all if a record alone has.
    """
    whole = make_batch(records, wall_ms, producer)
    if whole.size_bytes <= max_bytes:
        return [whole]
    return [make_batch(part, wall_ms, producer) for part in split_batches(records, max_bytes) or ()]


def make_batch(
    records: Sequence[CoordinatorRecord], wall_ms: int, producer: tuple[ProducerId, ProducerEpoch] | None = None
) -> ValidatedBatch:
    """A batch of our own making, which needs no check.

    With a producer it belongs to that one's transaction, and has no sequence.
    """
    producer_id, producer_epoch = producer if producer is not None else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    attributes = TRANSACTIONAL_BIT if producer is not None else 0
    tail = encode_plain_batch(
        records, wall_ms, producer_id=producer_id, producer_epoch=producer_epoch, attributes=attributes
    )
    size, count = MAGIC_POSITION + len(tail), len(records)
    # In the order of the fields, for names cost as much as the rest: size, delta of the last offset, count, the largest
    # timestamp and which record has it, the first timestamp, producer, sequence, attributes, bytes.
    return ValidatedBatch(
        size, count - 1, count, wall_ms, 0, wall_ms, producer_id, producer_epoch, NO_SEQUENCE, attributes, (tail,)
    )  # fmt: skip
