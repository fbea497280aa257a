"""The offsets of one replica of a partition, and the one place where their order is checked.

    log_start_offset <= recovery_point <= log_end_offset
    log_start_offset <= high_watermark <= log_end_offset
    log_start_offset <= log_start_pending <= log_end_offset

`log_start_offset` is the first readable offset. The others are exclusive ends: the high watermark of what is committed,
the recovery point of what is on the disk, the log end of what is written. `log_start_pending` is the largest requested
log start that isn't durable yet; it equals the log start if there is none. The last stable offset follows from the high
watermark and the open transactions.

Every method changes what must change together and ends in `check_order`, except the three that appends call, whose
assertions keep the order. Nothing here touches files or knows segments.

Sources: KAFKA-5634, KAFKA-8306, KAFKA-9491 and KAFKA-10101: a log start moved without the others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from lowtide.storage.log.producers.open_transactions import OpenTransactions

EPOCHS_MAX = 100_000
"""Beyond it the oldest entries are dropped: an election a second for a day, far more than a log ever keeps."""

_NEVER: Final[Offset] = 2**63 - 1


class LeaderEpochs:
    """The start offset (inclusive) of each leader epoch of one log, in memory, oldest first.

    Guards: epochs and start offsets strictly rise; no start offset lies below the log start after a trim, nor above the
    log end. From these entries replicas find where their logs diverge (KIP-101, KIP-279); a wrong entry loses or
    duplicates records after an election.

    `LogSync` stages the file `leader-epoch-checkpoint` for the next flush if `dirty`. Nothing waits for it, because the
    headers of unflushed batches have the epochs. Below the recovery point compaction may have removed all batches of an
    epoch; then only the file has its start.

    Source: Kafka's LeaderEpochFileCache.
    """

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
        if len(self._epochs) > EPOCHS_MAX:
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
        """Drops the epochs before the one that contains `log_start_offset`, and lets that one start there.

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


class LogOffsets:
    """The offsets of one log. Everyone reads them; only the methods change them."""

    __slots__ = (
        "high_watermark",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "log_start_pending",
        "recovery_point",
        "transactions",
    )

    def __init__(
        self,
        *,
        log_start_offset: Offset,
        log_end_offset: Offset,
        high_watermark: Offset,
        recovery_point: Offset,
        leader_epochs: LeaderEpochs | None = None,
        transactions: OpenTransactions | None = None,
    ) -> None:
        """Loads what a start found. High watermark and recovery point are brought between log start and log end."""
        self.log_start_offset = self.log_start_pending = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = min(max(high_watermark, log_start_offset), log_end_offset)
        self.recovery_point = min(max(recovery_point, log_start_offset), log_end_offset)
        self.leader_epochs = LeaderEpochs() if leader_epochs is None else leader_epochs
        self.transactions = OpenTransactions() if transactions is None else transactions
        self.check_order()

    def check_order(self) -> None:
        """Fails on offsets out of order: that is our own bug, found before they are visible."""
        assert 0 <= self.log_start_offset <= self.high_watermark <= self.log_end_offset, self.describe()
        assert self.log_start_offset <= self.recovery_point <= self.log_end_offset, self.describe()
        assert self.log_start_offset <= self.log_start_pending <= self.log_end_offset, self.describe()

    def describe(self) -> str:
        """Returns all offsets in one line, for messages."""
        return (
            f"log_start_offset={self.log_start_offset} log_start_pending={self.log_start_pending} "
            f"recovery_point={self.recovery_point} high_watermark={self.high_watermark} "
            f"log_end_offset={self.log_end_offset}"
        )

    @property
    def last_stable_offset(self) -> Offset:
        """The exclusive end of what read_committed may see; never below the log start."""
        first = self.transactions.first_unstable(self.high_watermark) if self.transactions.any else None
        return self.high_watermark if first is None else max(min(first, self.high_watermark), self.log_start_offset)

    def move_log_end(self, offset: Offset) -> None:
        """Moves the exclusive log end up to `offset`, after an append."""
        assert offset > self.log_end_offset, (offset, self.describe())
        self.log_end_offset = offset

    def advance_high_watermark(self, offset: Offset) -> bool:
        """Raises the high watermark to `offset`, at most to the log end. Returns whether it rose."""
        if offset > self.log_end_offset:  # noqa: PLR1730 - min() costs three times as much, and every append comes by
            offset = self.log_end_offset
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def raise_recovery_point(self, offset: Offset) -> bool:
        """Notes that everything below `offset` is on disk. Returns whether that is new."""
        if offset <= self.recovery_point:
            return False
        self.recovery_point = offset
        self.check_order()
        return True

    def lower_recovery_point(self, offset: Offset) -> None:
        """Lowers the recovery point to `offset`, at least the log start."""
        self.recovery_point = min(self.recovery_point, max(offset, self.log_start_offset))

    def move_log_start(self, offset: Offset) -> bool:
        """Raises the log start to `offset`, and with it what may not lie below it. Returns whether it rose.

        `offset` is at or below the log end, since a high watermark bounded the request (KAFKA-5634).
        """
        if offset <= self.log_start_offset:
            return False
        assert offset <= self.log_end_offset, (offset, self.describe())
        self.log_start_offset = offset
        self.log_start_pending = max(self.log_start_pending, offset)
        self.high_watermark = max(self.high_watermark, offset)
        self.recovery_point = max(self.recovery_point, offset)
        self.leader_epochs.truncate_from_start(offset)
        self.check_order()
        return True

    def request_log_start(self, offset: Offset) -> bool:
        """Notes a requested log start, which isn't visible yet. Returns whether it is the largest so far."""
        if offset <= self.log_start_pending:
            return False
        self.log_start_pending = offset
        self.check_order()
        return True

    def cut(self, log_end_offset: Offset) -> None:
        """Moves the exclusive log end down to `log_end_offset`, after a truncation.

        Below the log start that moves too: log start, high watermark and log end are then equal. A pending log start
        above the new end is cancelled: the records are gone, and others may take their offsets.
        """
        assert 0 <= log_end_offset <= self.log_end_offset, (log_end_offset, self.describe())
        self.log_end_offset = log_end_offset
        self.log_start_offset = min(self.log_start_offset, log_end_offset)
        if self.log_start_pending > log_end_offset:
            self.log_start_pending = self.log_start_offset
        self.high_watermark = min(self.high_watermark, log_end_offset)
        self.recovery_point = min(self.recovery_point, log_end_offset)
        self.leader_epochs.truncate_from_end(log_end_offset)
        self.check_order()

    def restart(self, *, log_start_offset: Offset, log_end_offset: Offset) -> None:
        """Starts over, empty: begins at `log_start_offset`; the next record gets `log_end_offset` (KAFKA-9491)."""
        self.log_start_offset = log_start_offset
        self.log_start_pending = log_start_offset
        self.log_end_offset = log_end_offset
        self.high_watermark = log_end_offset
        self.recovery_point = log_start_offset
        self.leader_epochs.clear()
        self.check_order()
