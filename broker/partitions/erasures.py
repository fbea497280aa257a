"""Appends erasures to partitions that are led here (docs/adr/0023).

Guards: an erasure is appended only in the leader epoch in which its records were found, and only when every broker
applies erasures. Several erasures of one request go in ascending order of their offsets.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.offset_ranges import OffsetRange, OffsetRanges
from lowtide.protocol.types import Offset
from lowtide.replication.partition import Partition
from lowtide.replication.refusal import Refusal
from lowtide.storage.log.markers import make_erasure

RANGE_BYTES_MAX: Final = 20
"""The most bytes that a range of offsets takes in an erasure."""

TOO_OLD: Final = "A broker of the cluster can't erase single records: nothing is erased before all brokers can."
COMPACTED: Final = (
    "The log was compacted, so its replicas may differ: erasing single records of compacted topics isn't supported."
)
TOO_FEW: Final = "Fewer replicas are in sync than min.insync.replicas."


def why_not_erasable(replicas: ReplicaManager, partition: Partition) -> Refusal | None:
    """Returns why records of a partition can't be erased by offset; None if they can."""
    log = partition.log
    if replicas.image is None or not replicas.image.erases_records:
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, TOO_OLD)
    if "compact" in log.config.cleanup_policy or log.swaps.cleaned_to is not None:
        return Refusal(ErrorCode.POLICY_VIOLATION, COMPACTED)
    return None if partition.has_enough_in_sync else Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, TOO_FEW)


def append_erasures(
    replicas: ReplicaManager, partition: Partition, erasure_id: UUID, found: OffsetRanges, now_ms: int
) -> Offset | ErrorCode:
    """Appends what erases the records at `found`, which is not empty. `now_ms` is wall-clock time.

    Returns the exclusive end of the last erasure. After an error some may have been appended; a repetition with the
    same id appends the rest. Errors: those of `Log.append_as_leader`.
    """
    config = partition.log.config
    ranges_max = max(min(config.max_message_bytes, config.segment_bytes) // 2 // RANGE_BYTES_MAX, 1)
    ranges: tuple[OffsetRange, ...] = found.ranges()
    end_offset: Offset = -1
    for start in range(0, len(ranges), ranges_max):
        record = ErasureRecord(erasure_id, 0, ranges[start : start + ranges_max])
        batch = make_erasure(record, partition.log.segments.active.max_timestamp)
        appended = replicas.append(partition, batch, now_ms)
        if isinstance(appended, ErrorCode):
            return appended
        end_offset = appended.last_offset + 1
    return end_offset
