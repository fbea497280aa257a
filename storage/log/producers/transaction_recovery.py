"""Finds out again which transactions of a segment were aborted: after an unclean stop, or where the file that says so is no good.

A marker doesn't say where its transaction began. Batches from the last snapshot at or before the segment on do, and the snapshot itself,
which holds the transactions that were open.

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
    """Build the entries of the segments at `base_offsets`, which rise, again. Returns the files that were written.

    That of the segment that is written comes when it is closed; on a full disk the others have to be built again
    another time. Errors: StorageError.
    """
    wanted = set(base_offsets)
    after = segments.number_of(base_offsets[-1]) + 1
    end_offset = segments.bases[after] if after < len(segments) else log_end_offset

    def on_completed(base_offset: Offset, transaction: CompletedTransaction) -> None:
        if transaction.is_aborted and base_offset in wanted:
            index.note(base_offset, transaction)

    for base_offset in base_offsets:
        index.begin_rebuild(base_offset)
    # Where transactions began counts here, which a snapshot still says when batches behind it were erased.
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
