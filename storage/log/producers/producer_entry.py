"""What is remembered of one idempotent producer: its epoch, last batches and open transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from lowtide.protocol.types import NO_SEQUENCE, UNKNOWN_OFFSET

if TYPE_CHECKING:
    from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId

REMEMBERED_BATCHES = 5
"""Batches per producer (`ProducerStateEntry.NUM_BATCHES_TO_RETAIN`)."""

LARGEST_SEQUENCE = 0x7FFF_FFFF
"""The sequence after it is 0."""

NO_COORDINATOR_EPOCH = -1


class ProducerBatch(Protocol):
    """A batch of a producer: the header of a stored one, or a validated one."""

    @property
    def producer_id(self) -> ProducerId: ...
    @property
    def producer_epoch(self) -> ProducerEpoch: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def attributes(self) -> int: ...


class ProducedBatch(msgspec.Struct, gc=False):
    """One remembered batch. Sequences and `last_offset` are inclusive."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> Offset:
        """The offset of the first record."""
        return self.last_offset - self.offset_delta


class ProducerEntry(msgspec.Struct, gc=False):
    """One producer. `batches` is oldest first, at most five, all of `producer_epoch`.

    `last_timestamp` is the max timestamp of the last batch, for DescribeProducers; `last_append_ms` is the wall-clock
    time of that append, from which the entry expires. `transaction_first_offset` is -1 without an open transaction.
    """

    producer_epoch: int
    batches: list[ProducedBatch]
    last_timestamp: int
    last_append_ms: int
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    transaction_first_offset: int = UNKNOWN_OFFSET

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 if no batch of this epoch is known."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE
