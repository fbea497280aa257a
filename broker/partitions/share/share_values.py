"""Values that go into a share partition and come out of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import Final

import msgspec

from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.protocol.types import Offset

NO_START_OFFSET: Offset = -1
"""The start offset of a share partition before it is known."""


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of a record, with the numbers of the wire (KIP-932, KIP-1222)."""

    GAP = 0
    """There is no such record."""
    ACCEPT = 1
    RELEASE = 2
    """Deliver it again."""
    REJECT = 3
    """Never deliver it again."""
    RENEW = 4
    """Renew the lock."""


_TYPES: Final = tuple(AcknowledgeType)


class ShareLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a group's share partitions, by the configuration of the group and the broker."""

    delivery_count_limit: int = 5
    """The most deliveries of a record, at least 2: `share.delivery.count.limit`."""
    lock_duration_ms: int = 30_000
    """`share.record.lock.duration.ms`."""
    record_locks_max: int = 2_000
    """The most offsets in flight, except for the rest of a batch: `share.partition.max.record.locks`."""
    has_dead_letters: bool = False
    """Whether records that are given up go to a dead-letter topic (KIP-1191)."""

    @property
    def isolation_count(self) -> int:
        """How many deliveries must fail before records are delivered apart from others, and fewer at a time.

        Half of the limit, as in Kafka, and at least 2. Kafka isolates nothing below a limit of 3; here the last
        delivery is always alone.
        """
        return min(max(-(-self.delivery_count_limit // 2), 2), self.delivery_count_limit - 1)


class LetterCounts(msgspec.Struct):
    """Counts of the dead letters of one group since the start of the broker."""

    written: int = 0
    requests: int = 0
    """The number of batches that were sent or appended."""
    failed_requests: int = 0
    unwritten: int = 0
    """Given-up records without a dead letter because of an error that does not pass."""
    deleted: int = 0
    """Given-up records that were deleted before their dead letters were written."""


class ShareCounts(msgspec.Struct):
    """Counts of what happened to records in all share partitions of a broker since its start."""

    acquired: int = 0
    timed_out: int = 0
    acknowledged: list[int] = msgspec.field(default_factory=lambda: [0] * len(AcknowledgeType))
    """By acknowledge type."""
    letters: dict[str, LetterCounts] = msgspec.field(default_factory=dict)
    """By group, of those that have a dead-letter topic."""

    def of_group(self, group_id: str) -> LetterCounts:
        """Returns the counts of a group."""
        return self.letters.setdefault(group_id, LetterCounts())

    def note(self, ranges: Sequence[AcknowledgedRange]) -> None:
        for each in ranges:
            if len(each.types) == 1:
                self.acknowledged[each.types[0]] += each.last_offset - each.first_offset + 1
            else:
                for kind in AcknowledgeType:
                    self.acknowledged[kind] += each.types.count(kind)


class FetchedBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch that was read from the log; both offsets are inclusive."""

    base_offset: Offset
    last_offset: Offset
    is_hidden: bool = False
    """Whether it is never delivered: a control batch, or an aborted one for readers of committed records."""


class AcquireLimits(msgspec.Struct, frozen=True, gc=False):
    """How many records a ShareFetch may acquire."""

    records_max: int
    """The most records; rounded up to whole batches unless `is_strict`."""
    batch_size: int
    """The size of acquired ranges in the response, about."""
    is_strict: bool = False
    """Whether `records_max` is exact (KIP-1206)."""
    is_joined: bool = False
    """Whether the answer already has records of other partitions, so that records to be delivered apart are skipped."""


class AcquiredRange(msgspec.Struct, gc=False):
    """Offsets (both inclusive) that a member has acquired, for the `delivery_count`-th time."""

    first_offset: Offset
    last_offset: Offset
    delivery_count: int


class AcknowledgedRange(msgspec.Struct, frozen=True, gc=False):
    """A member's acknowledgement of offsets (both inclusive): one type for all, or one for each."""

    first_offset: Offset
    last_offset: Offset
    types: tuple[int, ...]

    def pieces(self) -> Iterator[tuple[Offset, Offset, AcknowledgeType]]:
        """Yields the parts with equal type, with their first and last offsets."""
        if len(self.types) == 1:
            yield self.first_offset, self.last_offset, _TYPES[self.types[0]]
            return
        offset = self.first_offset
        for kind, same in groupby(self.types):
            count = len(list(same))
            yield offset, offset + count - 1, _TYPES[kind]
            offset += count


class GivenUpRange(msgspec.Struct, frozen=True, gc=False):
    """Offsets (both inclusive) that are given up after `delivery_count` deliveries, and have no dead letter yet."""

    first_offset: Offset
    last_offset: Offset
    delivery_count: int
    is_rejected: bool
    """Whether a member rejected them. Otherwise they were delivered as often as the group allows."""


class StateBatch(msgspec.Struct, frozen=True, gc=False):
    """A row of a stored state; both offsets are inclusive."""

    first_offset: Offset
    last_offset: Offset
    state: RecordState
    delivery_count: int


class StateWrite(msgspec.Struct, frozen=True, gc=False):
    """A change of a share partition's state, to be stored by the share coordinator."""

    number: int
    """The number of the write, from 1 on."""
    start_offset: Offset
    complete_count: int
    """The number of final offsets at and above `start_offset` (KIP-1226)."""
    batches: tuple[StateBatch, ...]
    """The changed offsets at and above `start_offset`, in order."""


class StoredState(msgspec.Struct, frozen=True):
    """The stored state of a share partition."""

    state_epoch: int = 0
    start_offset: Offset = NO_START_OFFSET
    batches: tuple[StateBatch, ...] = ()
    """In order of their offsets, without overlap."""


def add_batch(batches: list[StateBatch], batch: StateBatch) -> None:
    """Adds a batch, or extends the last one."""
    last = batches[-1] if batches else None
    if last is not None and (last.last_offset + 1, last.state, last.delivery_count) == (
        batch.first_offset,
        batch.state,
        batch.delivery_count,
    ):
        batches[-1] = StateBatch(last.first_offset, batch.last_offset, batch.state, batch.delivery_count)
    else:
        batches.append(batch)


def join_acquired(acquired: list[AcquiredRange], taken: list[AcquiredRange], batch_size: int) -> None:
    """Adds ranges, or extends the last one up to `batch_size`."""
    for each in taken:
        last = acquired[-1] if acquired else None
        continues = (
            last is not None
            and last.last_offset + 1 == each.first_offset
            and last.delivery_count == each.delivery_count
        )
        if last is not None and continues and each.last_offset - last.first_offset < batch_size:
            last.last_offset = each.last_offset
        else:
            acquired.append(each)
