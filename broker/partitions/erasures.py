"""Appends erasures to partitions that are led here (docs/adr/0023).

Guards: an erasure is appended only in the leader epoch in which its records were found, and only when every broker
applies erasures. Several erasures of one request go in ascending order of their offsets.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.erasure_record import ErasureRecord, ReplicaSearch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.replication.partition import Partition
from lowtide.replication.refusal import Refusal
from lowtide.storage.log.log import Log
from lowtide.storage.log.markers import make_erasure

RANGE_BYTES_MAX: Final = 20
"""The most bytes that a range of offsets takes in an erasure."""

TOO_OLD: Final = "A broker of the cluster can't erase single records: nothing is erased before all brokers can."
TOO_FEW: Final = "Fewer replicas are in sync than min.insync.replicas."


def why_not_erasable(replicas: ReplicaManager, partition: Partition) -> Refusal | None:
    """Returns why records of a partition can't be erased by offset; None if they can."""
    if replicas.image is None or not replicas.image.erases_records:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, TOO_OLD)
    return None if partition.has_enough_in_sync else Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, TOO_FEW)


def is_compacted(log: Log) -> bool:
    """Returns whether a log is or was compacted, so that its replicas may have different records."""
    return "compact" in log.config.cleanup_policy or log.swaps.cleaned_to is not None


def append_erasures(
    replicas: ReplicaManager,
    partition: Partition,
    erasure_id: UUID,
    found: OffsetRanges,
    now_ms: int,
    search: ReplicaSearch | None = None,
) -> Offset | ErrorCode:
    """Appends erasures of the records at `found`, which is empty only after a `search` of the replicas.

    If several are needed, they are in ascending order of offsets, so that no older version of a key becomes visible
    between them. `now_ms` is wall-clock time.

    Returns the exclusive end of the last erasure. After an error some may have been appended; a repetition with the
    same id appends the rest. Errors: those of `Log.append_as_leader`.
    """
    config = partition.log.config
    ranges_max = max(min(config.max_message_bytes, config.segment_bytes) // 2 // RANGE_BYTES_MAX, 1)
    ranges: tuple[OffsetRange, ...] = found.ranges()
    assert ranges or search is not None
    end_offset: Offset = -1
    for start in range(0, max(len(ranges), 1), ranges_max):
        record = ErasureRecord(erasure_id, ranges[start : start + ranges_max], search)
        batch = make_erasure(record, partition.log.segments.active.max_timestamp)
        appended = replicas.append(partition, batch, now_ms)
        if isinstance(appended, ErrorCode):
            return appended
        end_offset = appended.last_offset + 1
    return end_offset


def erase_found(
    replicas: ReplicaManager,
    partition: Partition,
    erasure_id: UUID,
    found: OffsetRanges,
    now_ms: int,
    search: ReplicaSearch | None = None,
) -> Offset | ErrorCode:
    """Erases what was found in a partition that is led here. `now_ms` is wall-clock time.

    `search` is that of all replicas, in a log that was compacted. The erasure is then appended even if nothing was
    found, unless the log has one with this id: what all have compacted away may come back with a replica that was away,
    or with an old copy of a volume. Without other replicas nothing can come back to this log.

    Returns the exclusive end of the erasures. If none was appended, it is that of the last one in the log, or -1.
    Errors: as `append_erasures`.
    """
    known = partition.log.erasures.known
    if partition.leadership is not None:
        # A replica that is away may have records below the log start, which the search doesn't see.
        partition.leadership.note_acknowledged(partition.log.log_start_offset)
    left = found.without(OffsetRanges.union_of(each.left for each in known))
    may_come_back = search is not None and len(partition.replicas) > 1
    if left or (may_come_back and not any(each.erasure_id == erasure_id and each.has_search for each in known)):
        return append_erasures(replicas, partition, erasure_id, left, now_ms, search)
    # Erasures of the same records by others, perhaps since the search, must be committed and done too.
    return known[-1].end_offset if known else UNKNOWN_OFFSET
