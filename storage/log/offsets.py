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

from lowtide.protocol.types import Offset
from lowtide.storage.log.leader_epochs import LeaderEpochs
from lowtide.storage.log.producers.open_transactions import OpenTransactions


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
