"""The invariants of logs with transactions, on all replicas, whenever a high watermark advances.

T3: the last stable offset is the start of the oldest transaction that is open, or whose marker is above the high
watermark; otherwise it is the high watermark. The transactions are read from the committed batches, not from brokers'
state.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec

from lowtide.protocol.records import BatchHeader
from lowtide.protocol.types import Offset, ProducerId
from lowtide.storage.log.log import Log


class TransactionalBatch(msgspec.Struct, frozen=True, order=True, gc=False):
    """A committed batch of a transaction, or a marker. `last_offset` is inclusive."""

    base_offset: Offset
    last_offset: Offset
    producer_id: ProducerId
    is_marker: bool


class CommittedTransactions:
    """The transactional batches of the committed part of a partition, in order."""

    __slots__ = ("batches", "may_be_lost")

    def __init__(self) -> None:
        self.batches: list[TransactionalBatch] = []
        self.may_be_lost = False
        """Whether some were lost: brokers may know more of what was below the log start offset."""

    def note(self, header: BatchHeader) -> None:
        if header.is_transactional:
            insort(
                self.batches,
                TransactionalBatch(header.base_offset, header.last_offset, header.producer_id, header.is_control),
            )

    def forget_from(self, end_offset: Offset) -> None:
        """Forgets batches from `end_offset`, which are not committed."""
        del self.batches[bisect_left(self.batches, end_offset, key=lambda batch: batch.base_offset) :]

    def void(self) -> None:
        """Handles lost records, including markers."""
        self.batches.clear()
        self.may_be_lost = True

    def first_unstable(self, high_watermark: Offset, log_start_offset: Offset) -> Offset | None:
        """Returns the start of the oldest transaction, from the log start offset, that is not known to have ended."""
        begun: dict[ProducerId, Offset] = {}
        for batch in self.batches:
            if batch.base_offset >= high_watermark:
                break
            if batch.is_marker:
                begun.pop(batch.producer_id, None)
            elif batch.last_offset >= log_start_offset:
                begun.setdefault(batch.producer_id, batch.base_offset)
        return min(begun.values(), default=None)

    def check(self, log: Log) -> str | None:
        """Checks a replica's last stable offset. Returns what is wrong."""
        start, high_watermark, stable = log.log_start_offset, log.high_watermark, log.last_stable_offset
        # A broker may know or have forgotten a transaction whose records all are below the log start offset.
        firsts = self.first_unstable(high_watermark, start), self.first_unstable(high_watermark, 0)
        allowed = [high_watermark if first is None else max(first, start) for first in firsts]
        if stable not in allowed and stable != self._kept_and_unstable(log) and not self._hangs_at_start(log):
            return f"T3: the last stable offset is {stable}, and should be {allowed[0]}: {log.describe()}"
        return None

    def _kept_and_unstable(self, log: Log) -> Offset | None:
        """Returns the last stable offset of a compacted log; None otherwise.

        A killed broker may know a lower high watermark than that of its compaction: a transaction is undecided again
        then, and its first records may be gone.
        """
        if "compact" not in log.config.cleanup_policy:
            return None
        kept = CommittedTransactions()
        for segment in log.segments:
            for _, header in segment.batches(0):
                kept.note(header)
        first = kept.first_unstable(log.high_watermark, log.log_start_offset)
        return log.high_watermark if first is None else max(first, log.log_start_offset)

    def _hangs_at_start(self, log: Log) -> bool:
        """Returns whether a transaction without a marker holds the last stable offset at the log start offset."""
        if not self.may_be_lost or log.last_stable_offset != log.log_start_offset:
            return False
        ended = {
            batch.producer_id for batch in self.batches if batch.is_marker and batch.base_offset < log.high_watermark
        }
        return any(
            0 <= producer.transaction_first_offset < log.log_start_offset and producer_id not in ended
            for producer_id, producer in log.producer_state.producers.items()
        )
