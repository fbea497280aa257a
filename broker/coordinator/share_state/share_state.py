"""The persisted state of one share partition: a value that each of its records replaces.

Pure. Guards: the epochs of the state and of the leadership never fall while the state lives.

Source: Kafka's `ShareGroupOffset`, `ShareCoordinatorShard`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.broker.coordinator.share_state.state_batches import combine
from lowtide.protocol.messages.read_share_group_state import ShareStateBatch
from lowtide.protocol.share_state_records import UNKNOWN_COUNT, UNKNOWN_START, ShareSnapshot, ShareUpdate
from lowtide.protocol.types import Offset

NO_EPOCH: Final = -1
"""The epoch of no leader yet, or of a request without fencing."""


class ShareState(msgspec.Struct, frozen=True, kw_only=True):
    """One state. `start_offset` is -1 until the partition's leader has chosen it."""

    state_epoch: int
    leader_epoch: int = NO_EPOCH
    start_offset: Offset = UNKNOWN_START
    delivery_complete_count: int = UNKNOWN_COUNT
    batches: tuple[ShareStateBatch, ...] = ()
    snapshot_epoch: int = 0
    create_ms: int = 0
    """When the last snapshot with a change was written, wall clock."""
    write_ms: int = 0
    """When the last snapshot was written; later than `create_ms` if it was written again without a change."""
    update_count: int = 0
    """The number of updates since the last snapshot."""
    snapshot_offset: Offset = 0
    """The offset of the last snapshot. This state does not need the log before it."""
    last_offset: Offset = 0
    """The offset of its last record."""

    @property
    def is_cold(self) -> bool:
        """Whether its last snapshot was written only to let the log be cut."""
        return self.write_ms != self.create_ms

    def snapshot(self, *, create_ms: int, write_ms: int) -> ShareSnapshot:
        """Returns the next snapshot record."""
        return ShareSnapshot(
            snapshot_epoch=self.snapshot_epoch + 1,
            state_epoch=self.state_epoch,
            leader_epoch=self.leader_epoch,
            start_offset=self.start_offset,
            delivery_complete_count=self.delivery_complete_count,
            create_timestamp=create_ms,
            write_timestamp=write_ms,
            state_batches=list(self.batches),
        )

    def after(self, update: ShareUpdate, offset: Offset) -> ShareState:
        """Returns the state after an update record at `offset` of the log."""
        start_offset = self.start_offset if update.start_offset == UNKNOWN_START else update.start_offset
        if update.state_batches or start_offset != self.start_offset:
            batches = tuple(combine((*self.batches, *update.state_batches), start_offset))
        else:
            batches = self.batches
        return msgspec.structs.replace(
            self,
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=batches,
            update_count=self.update_count + 1,
            last_offset=offset,
        )


def state_of_snapshot(value: ShareSnapshot, offset: Offset, before: ShareState | None) -> ShareState:
    """Returns the state after a snapshot record at `offset` of the log."""
    return ShareState(
        state_epoch=value.state_epoch if before is None else max(before.state_epoch, value.state_epoch),
        leader_epoch=value.leader_epoch,
        start_offset=value.start_offset,
        delivery_complete_count=value.delivery_complete_count,
        batches=tuple(combine(value.state_batches, value.start_offset)),
        snapshot_epoch=value.snapshot_epoch,
        create_ms=value.create_timestamp,
        write_ms=value.write_timestamp,
        snapshot_offset=offset,
        last_offset=offset,
    )


def state_of_update(value: ShareUpdate, offset: Offset) -> ShareState:
    """Returns the state after an update of an unknown state: the log was cut between its snapshot and this."""
    empty = ShareState(state_epoch=0, snapshot_epoch=value.snapshot_epoch, snapshot_offset=offset)
    return empty.after(value, offset)
