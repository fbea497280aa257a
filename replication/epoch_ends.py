"""Where leader epochs end in a partition's log, and where a reader's log differs from it. Sources: KIP-101, KIP-279."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.protocol.types import LeaderEpoch, Offset
    from lowtide.replication.partition import Partition


class EpochEnd(msgspec.Struct, frozen=True, gc=False):
    """The end of a leader epoch: the largest epoch at or below the requested one, and its end offset (exclusive)."""

    leader_epoch: LeaderEpoch
    end_offset: Offset


def end_offset_for_epoch(partition: Partition, leader_epoch: LeaderEpoch) -> EpochEnd:
    """Returns the end (exclusive) of the largest epoch at or below `leader_epoch`, if any (KIP-101, KIP-279).

    The current epoch ends at the log end, even if nothing was appended in it. Until something is, so does the last
    epoch with records: an epoch in between wrote nothing here, and a follower that has records of it must drop them.
    """
    log_end_offset, epochs = partition.log.log_end_offset, partition.log.leader_epochs
    if leader_epoch == partition.leader_epoch:
        return EpochEnd(leader_epoch, log_end_offset)
    if 0 <= leader_epoch < partition.leader_epoch and leader_epoch > epochs.latest:
        return EpochEnd(epochs.latest if epochs.latest >= 0 else leader_epoch, log_end_offset)
    found_epoch, end_offset = epochs.end_offset_for(leader_epoch, log_end_offset)
    return EpochEnd(found_epoch, end_offset)


def diverging_epoch(
    partition: Partition, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch
) -> EpochEnd | ErrorCode | None:
    """Returns how a reader whose last record has `last_fetched_epoch` differs from this log, or None (KIP-595).

    Errors: OFFSET_OUT_OF_RANGE for an epoch that this log never had. The caller checks the offset's range before.
    """
    end = end_offset_for_epoch(partition, last_fetched_epoch)
    if end.leader_epoch < 0 or end.end_offset < 0:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if end.leader_epoch < last_fetched_epoch or end.end_offset < fetch_offset:
        return end
    return None
