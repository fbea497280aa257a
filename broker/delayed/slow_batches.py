"""What is kept of a Produce request beyond the callback that brought it: batches for the worker, and those that are appended in slices.

Views of received bytes die with their callback, but for those of a large frame, which was mapped for its request alone: it stays as it is
while a view of it lives, so nothing of it has to be copied.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, Final

import msgspec

from lowtide.broker.coordinator.verification import Question
from lowtide.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse
from lowtide.replication.partition import Partition
from lowtide.storage.validator import Rejection, ValidatedBatch, ValidationRules, validate_produce
from lowtide.storage.verifications import Verification

LARGE_BYTES: Final = 4 << 20
"""A larger batch is slow, whatever is in it: its checksum alone takes a millisecond and more."""

_ROW_BYTES: Final = 200
"""What a batch that waits takes besides its bytes, about."""


class SlowBatch(msgspec.Struct):
    """A batch that the worker checks; `placeholder` stands in the answer until then."""

    topic: str
    partition: Partition
    records: Any
    rules: ValidationRules
    version: int
    now_ms: int
    acks: int
    transactional_id: str | None
    placeholder: PartitionProduceResponse
    question: Question | None = None
    """What the transaction's coordinator is to be asked first; `guard` is the verification that has to hold then."""
    guard: Verification | None = None
    kept_bytes: int = 0

    def renew(self) -> None:
        """Begin the verification again, for another attempt to ask."""
        assert self.question is not None
        assert self.guard is not None
        asked, guard = self.question.transaction, self.guard
        self.guard = self.partition.log.producer_state.verifications.begin(
            asked.producer_id, asked.producer_epoch, guard.lowest_sequence, adds_itself=guard.adds_itself, now_ms=guard.began_ms
        )

    def check(self) -> ValidatedBatch | Rejection | None:
        """In the worker: touches nothing but the bytes."""
        return validate_produce(self.records, self.rules, self.now_ms)


class Rest(msgspec.Struct):
    """What is left of a request's batches of one topic; their rows of the answer follow those in `results`."""

    topic: str
    rows: list[PartitionProduceData]
    results: list[PartitionProduceResponse]


def kept(records: Any) -> tuple[Any, int]:
    """A batch that may be kept beyond the callback that brought it, and what that costs.

    A large frame is counted whole; anything else is copied.
    """
    frame = records.obj if isinstance(records, memoryview) else records
    return (records, len(frame) + _ROW_BYTES) if isinstance(frame, mmap) else (bytes(records), len(records) + _ROW_BYTES)


def keep(rest: list[Rest]) -> int:
    """Keep what is left of a request; returns what that costs."""
    rows = [row for left in rest for row in left.rows]
    for row in rows:
        if row.records is not None:
            records, kept_bytes = kept(row.records)
            if records is row.records:  # All of one frame.
                return kept_bytes + len(rows) * _ROW_BYTES
            row.records = records
    return sum(len(row.records or b"") for row in rows) + len(rows) * _ROW_BYTES
