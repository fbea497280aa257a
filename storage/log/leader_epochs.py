"""The start offset (inclusive) of each leader epoch of a log, in memory.

Guards: epochs and start offsets strictly rise; no start offset lies below the log start after a trim, nor above the log
end. From these entries replicas find where their logs diverge (KIP-101, KIP-279); a wrong entry loses or duplicates
records after an election.

`LogSync` stages the file `leader-epoch-checkpoint` for the next flush if `dirty`. Nothing waits for it, because the
headers of unflushed batches have the epochs. Below the recovery point compaction may have removed all batches of an
epoch; then only the file has its start.

Source: Kafka's LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset

MAXIMUM_ENTRIES = 100_000
"""Beyond it the oldest entries are dropped: an election a second for a day, far more than a log ever keeps."""

_NEVER: Final[Offset] = 2**63 - 1


class LeaderEpochs:
    """The epochs of one log, oldest first."""

    __slots__ = ("_epochs", "_starts", "dirty", "latest")

    def __init__(self, entries: Iterable[tuple[LeaderEpoch, Offset]] = ()) -> None:
        """`entries` are (epoch, start offset) in rising order, as in a checkpoint."""
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        self.latest: LeaderEpoch = NO_LEADER_EPOCH
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.dirty = False

    def __len__(self) -> int:
        return len(self._epochs)

    def entries(self) -> list[tuple[LeaderEpoch, Offset]]:
        """Returns (epoch, start offset) of each, oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Records that `epoch` writes from `start_offset` (inclusive) on. Returns whether that is new.

        Drops entries that contradict it, with a later epoch or a start at or after this one, because the new leader is
        right.
        """
        if epoch < 0:
            return False
        if epoch == self.latest and start_offset >= self._starts[-1]:
            return False
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        del self._epochs[keep:], self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        if len(self._epochs) > MAXIMUM_ENTRIES:
            del self._epochs[0], self._starts[0]
        self._changed()
        return True

    def confirm(self, epoch: LeaderEpoch, base_offset: Offset, last_offset: Offset) -> Offset:
        """Records that a stored batch was written in `epoch`. Entries that no batch contradicts stay.

        Batches below the first entry are ignored: the log starts above them. Returns the exclusive end up to which the
        next batches of the same epoch need no call.
        """
        starts = self._starts
        if starts and last_offset < starts[0]:
            return starts[0]
        if not starts or self.epoch_at(last_offset) != epoch or self.epoch_at(max(base_offset, starts[0])) != epoch:
            self.assign(epoch, base_offset)
        later = bisect_right(self._starts, last_offset)
        return self._starts[later] if later < len(self._starts) else _NEVER

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """Returns the largest epoch at or below `epoch` that wrote here, and the exclusive end of its records.

        Returns (-1, -1) for -1 and for an epoch newer than all known ones; for an epoch older than all known ones, that
        epoch and the first start.
        """
        if epoch == NO_LEADER_EPOCH or epoch > self.latest or not self._starts:
            return NO_LEADER_EPOCH, UNKNOWN_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        later = bisect_right(self._epochs, epoch)
        if later == 0:
            return epoch, self._starts[0]
        return self._epochs[later - 1], self._starts[later]

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """Returns the epoch that wrote `offset`; -1 if no entry reaches down to it."""
        later = bisect_right(self._starts, offset)
        return self._epochs[later - 1] if later else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: Offset, *, is_empty: bool = False) -> bool:
        """Drops the epochs that begin at or after the exclusive log end `end_offset`. Returns whether there were any.

        `is_empty`: the log starts there too. Then an epoch that begins there is that of the last deleted record. It
        stays; otherwise after an election no broker would see that this log has another history.
        """
        keep = bisect_left(self._starts, end_offset)
        if is_empty and keep == 0 and self._starts and self._starts[0] == end_offset:
            keep = 1
        if keep == len(self._starts):
            return False
        del self._epochs[keep:], self._starts[keep:]
        self._changed()
        return True

    def truncate_from_start(self, log_start_offset: Offset) -> bool:
        """Moves the start of the epoch that contains `log_start_offset` there, and drops earlier ones.

        Returns whether anything changed.
        """
        starts = self._starts
        if not starts or starts[0] >= log_start_offset:
            return False
        if len(starts) == 1 or starts[1] > log_start_offset:  # Most deletes: no epoch goes.
            starts[0] = log_start_offset
            self.dirty = True
            return True
        passed = bisect_right(starts, log_start_offset)
        del self._epochs[: passed - 1], starts[: passed - 1]
        starts[0] = log_start_offset
        self._changed()
        return True

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
        self._changed()

    def _changed(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else NO_LEADER_EPOCH
        self.dirty = True
