"""Control batches as a leader appends them, and the checks of producers around an append.

A marker ends a transaction. It is a control batch of one record. Instead of a sequence it has the coordinator's epoch:
a coordinator older than the one that wrote the last marker is refused.

Source: KIP-98, KIP-890; Kafka's `MemoryRecords.withEndTransactionMarker`, `ProducerAppendInfo`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lowtide.protocol.control_records import ControlRecord, ControlRecordType, end_transaction_record
from lowtide.protocol.erasure_record import ErasureRecord, encode_erasure
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.plain_batches import encode_plain_batch
from lowtide.protocol.records import CONTROL_BIT, MAGIC_POSITION, TRANSACTIONAL_BIT
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Offset, ProducerEpoch, ProducerId
from lowtide.storage.log.log_values import AppendedBatch
from lowtide.storage.log.producers.open_transactions import CompletedTransaction
from lowtide.storage.log.producers.producer_state import AcceptedBatch, DuplicateBatch, ProducerStateManager
from lowtide.storage.log.validation.validator import ValidatedBatch

REMEMBERED_CONTENTS: Final = 64
"""A coordinator's partition has one epoch at a time."""


class Marker(ValidatedBatch, kw_only=True):
    """A batch that ends a producer's transaction in one partition.

    `epoch_is_bumped`: see `ProducerStateManager.check_marker`.
    """

    control: ControlRecord
    epoch_is_bumped: bool


def make_marker(
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    *,
    is_commit: bool,
    coordinator_epoch: int,
    epoch_is_bumped: bool,
    now_ms: int,
) -> Marker:
    """Returns the marker that ends a transaction. `now_ms` is wall-clock time."""
    control, record = _content_of(is_commit, coordinator_epoch)
    tail = encode_plain_batch(
        [record],
        now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )
    size = MAGIC_POSITION + len(tail)
    # In the order of the fields, as `runtime.shard.make_batch` does: many markers are made.
    return Marker(
        size, 0, 1, now_ms, 0, now_ms, producer_id, producer_epoch, NO_SEQUENCE, TRANSACTIONAL_BIT | CONTROL_BIT,
        (tail,), control=control, epoch_is_bumped=epoch_is_bumped,
    )  # fmt: skip


class ErasureBatch(ValidatedBatch, kw_only=True):
    """A control batch without a producer that names erased offsets (docs/adr/0023)."""

    record: ErasureRecord


def make_erasure(record: ErasureRecord, timestamp: int) -> ErasureBatch:
    """Returns the batch of an erasure.

    `timestamp` is the largest in the segment so far, so that the erasure doesn't change when retention deletes it.
    """
    tail = encode_plain_batch([encode_erasure(record)], timestamp, attributes=CONTROL_BIT)
    return ErasureBatch(
        MAGIC_POSITION + len(tail), 0, 1, timestamp, 0, timestamp, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE,
        CONTROL_BIT, (tail,), record=record,
    )  # fmt: skip


@lru_cache(REMEMBERED_CONTENTS)
def _content_of(is_commit: bool, coordinator_epoch: int) -> tuple[ControlRecord, tuple[bytes, bytes]]:  # noqa: FBT001 - to be remembered
    """Returns control and record of a marker, which all markers of one coordinator's epoch share."""
    control = ControlRecord(ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT, coordinator_epoch)
    return control, end_transaction_record(control)


def check_producer(state: ProducerStateManager, batch: ValidatedBatch) -> AcceptedBatch | DuplicateBatch | ErrorCode:
    """Checks whether a batch with a producer id may be appended.

    Errors: those of `ProducerStateManager.check` and `check_marker`.
    """
    if isinstance(batch, Marker):
        return state.check_marker(
            batch.producer_id,
            batch.producer_epoch,
            batch.control.coordinator_epoch,
            epoch_is_bumped=batch.epoch_is_bumped,
        )
    return state.check(
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.record_count,
        is_transactional=bool(batch.attributes & TRANSACTIONAL_BIT),
    )


def remember_producer(
    state: ProducerStateManager, batch: ValidatedBatch, base_offset: Offset, now_ms: int
) -> CompletedTransaction | None:
    """Adds an appended batch to the producer state. Returns the transaction that it ended."""
    if isinstance(batch, Marker):
        return state.end_transaction(
            batch.producer_id,
            batch.producer_epoch,
            batch.control,
            marker_offset=base_offset,
            timestamp=batch.max_timestamp,
            now_ms=now_ms,
        )
    state.update(batch, base_offset=base_offset, now_ms=now_ms)
    return None


def refused(known: AcceptedBatch | DuplicateBatch | ErrorCode) -> AppendedBatch | ErrorCode:
    """Returns the answer to a batch that isn't appended.

    For a duplicate that is the original batch, with its time even under CreateTime.
    """
    assert not isinstance(known, AcceptedBatch)
    if isinstance(known, DuplicateBatch):
        return AppendedBatch(known.base_offset, known.last_offset, known.timestamp, duplicate=True)
    return known
