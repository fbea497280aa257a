"""The transactions of a partition that end the part that is readable as committed.

A transaction is open from its first batch to its marker. Then it is undecided until the marker is committed, because
another leader may not have the marker. A consumer of committed records must stop at the first offset of the oldest of
both.

Guards: the last stable offset passes no record of a transaction that isn't known to have ended everywhere.

Source: KIP-98, Kafka's `ProducerStateManager.firstUnstableOffset`, `TxnMetadata`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from lowtide.protocol.types import Offset, ProducerId


class CompletedTransaction(msgspec.Struct, frozen=True, gc=False):
    """A transaction whose marker was appended. `last_offset`, the marker's, is inclusive.

    `last_stable_offset` is the exclusive end of the stable part once the marker is committed.
    """

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    is_aborted: bool
    last_stable_offset: Offset


class OpenTransactions:
    """The transactions of one partition that are open or undecided. `any` is False if there is certainly none.

    Decided ones are only dropped on demand (`first_unstable`), so that a rising high watermark costs nothing.
    """

    __slots__ = ("_open", "_undecided", "any")

    def __init__(self) -> None:
        self._open: OrderedDict[Offset, ProducerId] = OrderedDict()
        """By first offset, the oldest first: offsets rise."""
        self._undecided: list[tuple[Offset, Offset]] = []  # A deque takes 760 bytes in each of many partitions.
        """First offset and marker's offset, in the order of markers."""
        self.any = False

    def __len__(self) -> int:
        """Returns the number of open transactions."""
        return len(self._open)

    def begin(self, first_offset: Offset, producer_id: ProducerId) -> None:
        assert not self._open or first_offset > next(reversed(self._open)), "transactions begin in the order of offsets"
        self._open[first_offset] = producer_id
        self.any = True

    def end(self, first_offset: Offset, marker_offset: Offset, *, is_aborted: bool) -> CompletedTransaction:
        """Ends an open transaction whose marker was appended."""
        producer_id = self._open.pop(first_offset)
        self._undecided.append((first_offset, marker_offset))
        return CompletedTransaction(
            producer_id, first_offset, marker_offset, is_aborted, next(iter(self._open), marker_offset + 1)
        )

    def settle(self, high_watermark: Offset) -> None:
        """Drops transactions that ended below the high watermark (exclusive)."""
        undecided = self._undecided
        decided = 0
        while decided < len(undecided) and undecided[decided][1] < high_watermark:
            decided += 1
        del undecided[:decided]
        self.any = bool(undecided or self._open)

    def first_unstable(self, high_watermark: Offset) -> Offset | None:
        """Returns the first offset of the oldest transaction that is open, or undecided at this high watermark."""
        self.settle(high_watermark)
        oldest = next(iter(self._open), None)
        for first_offset, _ in self._undecided:
            if oldest is None or first_offset < oldest:
                oldest = first_offset
        return oldest

    def restart(self, open_transactions: Iterable[tuple[Offset, ProducerId]] = ()) -> None:
        self._open = OrderedDict(sorted(open_transactions))
        self._undecided.clear()
        self.any = bool(self._open)
