"""A shard: one partition of a coordinator's topic that this broker leads, with its state and its waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from lowtide.broker.coordinator.runtime.effects import Effects, Then
from lowtide.broker.coordinator.runtime.offsets_topic import OF_OFFSETS, Configs
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
from lowtide.storage.log.validation.validator import ValidatedBatch

assert LOG_OVERHEAD < MAGIC_POSITION < CRC_POSITION < RECORD_BATCH_OVERHEAD

RECORD_OVERHEAD: Final = 36
"""The most that a record without headers takes besides its key and value."""


class CoordinatorSettings(Protocol):
    """The settings that the runtime needs."""

    @property
    def commit_timeout_ms(self) -> int: ...
    @property
    def load_buffer_bytes(self) -> int: ...


class CoordinatorState(Protocol):
    """The state of a shard: pure, and changed by records only."""

    @property
    def settings(self) -> CoordinatorSettings: ...
    @property
    def timers(self) -> Timers[Any]: ...
    @property
    def count(self) -> int:
        """The number of entries, for the log."""

    def apply(self, change: Any, offset: Offset) -> None:
        """Applies a record or a marker (`in_transaction`) of a log that is being loaded. Errors: ProtocolError."""

    def note(self, change: Any, offset: Offset) -> None:
        """Applies a record or a marker that was just appended."""

    def on_loaded(self, effects: Effects) -> None:
        """Starts the timers of a loaded shard. Called when all its records are applied."""

    def on_unloaded(self, effects: Effects) -> None:
        """Ends it. Called when another broker coordinates the shard."""

    def on_timer(self, key: Any, effects: Effects) -> None:
        """Handles a deadline that has come."""


S = TypeVar("S", bound=CoordinatorState)

Decode: TypeAlias = Callable[[bytes | None, bytes | None], Any]
"""Decodes a record from key and value; None for a record of an unknown type. Errors: ProtocolError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatedTopic(Generic[S]):
    """A coordinator's topic: its name, its configuration, and functions that make a state and decode records."""

    name: str
    configs: Configs = OF_OFFSETS
    factor_key: str = "offsets.topic.replication.factor"
    """The key of the broker that sets the topic's replication factor."""
    make_state: Callable[[], S]
    decode: Decode = decode_record


class ShardWait(msgspec.Struct):
    """A continuation for when the log is committed up to `end_offset` (exclusive).

    It fails at the deadline (monotonic).
    """

    end_offset: Offset
    deadline_ms: int
    then: list[Then]


class Shard(Generic[S]):
    """One shard. It belongs to one leadership (`Partition.led_since`); another leadership has a new state."""

    __slots__ = (
        "awaits_commit",
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
        self.loaded = False
        self.unloaded = False
        self.records_loaded = 0
        self.records_left_aside = 0
        self.waiting: deque[ShardWait] = deque()
        """In order of their offsets."""
        self.awaits_commit = False
        """Whether a wait for the first of them is under way at the partition."""

    @property
    def leads(self) -> bool:
        """Whether this broker still leads the partition, by the leadership of this state."""
        partition = self.partition
        return partition.led_since == self.led_since and partition.is_leader and not partition.log.offline

    def wait(self, end_offset: Offset, deadline_ms: int, then: list[Then]) -> None:
        """Continues when the log is committed up to `end_offset`, after the waits before it."""
        if self.waiting:
            end_offset = max(end_offset, self.waiting[-1].end_offset)
        self.waiting.append(ShardWait(end_offset, deadline_ms, then))


def split_batches(records: Sequence[CoordinatorRecord], max_bytes: int) -> list[Sequence[CoordinatorRecord]] | None:
    """Returns the records in batches of at most `max_bytes` each; None if one record alone is larger."""
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
    """Returns the records as one batch, or as several if it would exceed `max_bytes`; none if one record alone does."""
    whole = make_batch(records, wall_ms, producer)
    if whole.size_bytes <= max_bytes:
        return [whole]
    return [make_batch(part, wall_ms, producer) for part in split_batches(records, max_bytes) or ()]


def make_batch(
    records: Sequence[CoordinatorRecord], wall_ms: int, producer: tuple[ProducerId, ProducerEpoch] | None = None
) -> ValidatedBatch:
    """Returns a batch that needs no validation. With a producer it belongs to its transaction and has no sequence."""
    producer_id, producer_epoch = producer if producer is not None else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
    attributes = TRANSACTIONAL_BIT if producer is not None else 0
    tail = encode_plain_batch(
        records, wall_ms, producer_id=producer_id, producer_epoch=producer_epoch, attributes=attributes
    )
    size, count = MAGIC_POSITION + len(tail), len(records)
    # Positional for speed: size, last offset delta, count, largest timestamp, the record that has it, first timestamp,
    # producer, sequence, attributes, bytes.
    return ValidatedBatch(
        size, count - 1, count, wall_ms, 0, wall_ms, producer_id, producer_epoch, NO_SEQUENCE, attributes, (tail,)
    )  # fmt: skip
