"""Finds the batches of aborted transactions, and superfluous markers, while a log is read in order.

A marker is needed as long as any batch of its transaction is in the log, even an empty one. Guards: the marker of an
aborted transaction, and its entry in the transaction index, stay as long as a reader could meet one of its batches.

Source: Kafka's CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.records import BatchHeader
from lowtide.protocol.types import Offset, ProducerId
from lowtide.storage.log.producers.open_transactions import CompletedTransaction


class CleanedTransactions:
    """The transactions of a log that is being compacted. It receives every batch from some offset on, in order."""

    def __init__(self, aborted: Iterable[CompletedTransaction]) -> None:
        """`aborted` are the transactions with a batch or a marker from that offset on, each once."""
        self.retained: list[CompletedTransaction] = []
        """Aborted transactions with a needed marker, since the caller last emptied this list."""
        self._to_come = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborted: dict[ProducerId, CompletedTransaction] = {}
        self._has_batches: set[ProducerId] = set()
        """Producers with a batch of their present transaction."""

    def on_batch(self, header: BatchHeader) -> bool:
        """Processes a batch that has, or had, records. Returns whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        self._has_batches.add(header.producer_id)
        return header.producer_id in self._aborted

    def on_marker(self, header: BatchHeader, control: ControlRecord | None) -> bool:
        """Processes a control batch and returns whether it is superfluous.

        `control` is None for an empty batch, or one that ends no transaction.
        """
        self._begin_up_to(header.last_offset)
        if control is None:
            return not header.record_count
        has_batches = header.producer_id in self._has_batches
        self._has_batches.discard(header.producer_id)
        if control.type is ControlRecordType.ABORT:
            aborted = self._aborted.pop(header.producer_id, None)
            if aborted is not None and has_batches:
                self.retained.append(aborted)
        return not has_batches

    def _begin_up_to(self, offset: Offset) -> None:
        """Notes the transactions that begin at or below `offset`."""
        while self._to_come and self._to_come[0].first_offset <= offset:
            begun = self._to_come.popleft()
            self._aborted.setdefault(begun.producer_id, begun)
