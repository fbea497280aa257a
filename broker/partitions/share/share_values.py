"""What goes into a share partition and comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import msgspec

from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.protocol.types import Offset

NO_START_OFFSET: Offset = -1
"""The start offset of a share partition that the share coordinator has none of yet."""


class AcknowledgeType(IntEnum):
    """What a member says of a record, with the numbers of the wire (KIP-932, KIP-1222)."""

    GAP = 0
    """There is no such record."""
    ACCEPT = 1
    RELEASE = 2
    """It shall be delivered again."""
    REJECT = 3
    """It shall never be delivered again."""
    RENEW = 4
    """The member needs more time for it."""


class ShareLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration of a group and of the broker says about its share partitions."""

    delivery_count_limit: int = 5
    """So often a record is delivered at most, from 2 on: `share.delivery.count.limit`."""
    lock_duration_ms: int = 30_000
    """`share.record.lock.duration.ms`."""
    record_locks_max: int = 2_000
    """So many offsets are in flight at most, but for the rest of a record batch: `share.partition.max.record.locks`."""

    @property
    def isolation_count(self) -> int:
        """Records that were delivered so often in vain are delivered apart from others, and fewer at a time.

        Half of the limit, as in Kafka, and at least 2. Below a limit of 3 Kafka isolates nothing; here the last
        delivery is always alone.
        """
        return min(max(-(-self.delivery_count_limit // 2), 2), self.delivery_count_limit - 1)


class ShareCounts(msgspec.Struct):
    """What has happened to records in all share partitions of a broker since it started. Counts only rise."""

    acquired: int = 0
    timed_out: int = 0
    acknowledged: list[int] = msgspec.field(default_factory=lambda: [0] * len(AcknowledgeType))
    """By acknowledge type."""

    def note(self, ranges: Sequence[AcknowledgedRange]) -> None:
        """A member has acknowledged these."""
        for each in ranges:
            if len(each.types) == 1:
                self.acknowledged[each.types[0]] += each.last_offset - each.first_offset + 1
            else:
                for kind in AcknowledgeType:
                    self.acknowledged[kind] += each.types.count(kind)


class FetchedBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch that was read from the log, by its offsets, both inclusive."""

    base_offset: Offset
    last_offset: Offset
    is_hidden: bool = False
    """Whether it is never delivered: a control batch, or for a reader of committed records one of an aborted transaction."""


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """How much a ShareFetch asks for."""

    records_max: int
    """So many records at most; whole record batches unless `is_strict`."""
    batch_size: int
    """So many records are given back as one range of acquired ones, about."""
    is_strict: bool = False
    """KIP-1206: not one record above `records_max`."""
    is_joined: bool = False
    """Whether the answer has records of other partitions already: then it takes none that must be apart from others."""


class AcquiredRange(msgspec.Struct, gc=False):
    """Offsets from `first_offset` to `last_offset` (inclusive) that a member has acquired, for the `delivery_count`-th time."""

    first_offset: Offset
    last_offset: Offset
    delivery_count: int


class AcknowledgedRange(msgspec.Struct, frozen=True, gc=False):
    """What a member says of the offsets from `first_offset` to `last_offset` (inclusive): one type for all, or one for each."""

    first_offset: Offset
    last_offset: Offset
    types: tuple[int, ...]


class StateBatch(msgspec.Struct, frozen=True, gc=False):
    """A row of what the share coordinator stores: both offsets inclusive."""

    first_offset: Offset
    last_offset: Offset
    state: RecordState
    delivery_count: int


class StateWrite(msgspec.Struct, frozen=True, gc=False):
    """What the share coordinator is to store now."""

    number: int
    """Rises from write to write, from 1 on."""
    start_offset: Offset
    complete_count: int
    """How many offsets at and above `start_offset` are final (KIP-1226)."""
    batches: tuple[StateBatch, ...]
    """The offsets that have changed, at and above `start_offset`, in their order."""


class StoredState(msgspec.Struct, frozen=True):
    """What the share coordinator has stored of a share partition."""

    state_epoch: int = 0
    start_offset: Offset = NO_START_OFFSET
    batches: tuple[StateBatch, ...] = ()
    """In the order of their offsets, none twice."""
