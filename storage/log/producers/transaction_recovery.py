"""Rebuilds the aborted transactions of a segment: after an unclean stop, or if their file is invalid.

A marker doesn't say where its transaction began. Batches from the last snapshot at or before the segment on do, and so
does the snapshot, which has the open transactions.

Source: Kafka's `LogSegment.recover`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from lowtide.protocol.types import Offset
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.producer_state import ProducerStateManager
from lowtide.storage.log.producers.snapshots import ProducerSnapshots
from lowtide.storage.log.producers.transaction_index import TransactionIndex
from lowtide.storage.log.segments.segment_list import SegmentList


def rebuild_aborted(
    index: TransactionIndex,
    base_offsets: Sequence[Offset],
    segments: SegmentList,
    snapshots: ProducerSnapshots,
    log_end_offset: Offset,
) -> list[str]:
    """Rebuilds the entries of the segments at `base_offsets`, in rising order. Returns the files that were written.

    The active segment's file is written when it is closed. On a full disk the others are rebuilt another time. Errors:
    StorageError.
    """
    wanted = set(base_offsets)
    after = segments.number_of(base_offsets[-1]) + 1
    end_offset = segments.bases[after] if after < len(segments) else log_end_offset

    def on_completed(base_offset: Offset, transaction: CompletedTransaction) -> None:
        if transaction.is_aborted and base_offset in wanted:
            index.note(base_offset, transaction)

    for base_offset in base_offsets:
        index.begin_rebuild(base_offset)
    # The starts of transactions count here; a snapshot has them even if batches after it were erased.
    snapshots.reload(
        ProducerStateManager(),
        segments,
        end_offset,
        newest=base_offsets[0],
        log_start_offset=0,
        now_ms=0,
        recalls=False,
        on_completed=on_completed,
    )
    for base_offset in base_offsets:
        index.end_rebuild(base_offset)
    written: list[str] = []
    with contextlib.suppress(OSError):
        for base_offset in base_offsets:
            if base_offset != segments.active.base_offset:
                written += index.write(base_offset)
    return written
