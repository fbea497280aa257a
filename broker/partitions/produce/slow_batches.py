"""What is kept of a Produce request beyond the callback that brought it: batches for the worker, and those that are appended in slices.

Views of received bytes die with their callback, but for those of a large frame, which was mapped for its request alone: it stays as it is
while a view of it lives, so nothing of it has to be copied.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, Final

import msgspec

from lowtide.broker.partitions.produce.transaction_question import Question
from lowtide.protocol.messages.produce import PartitionProduceData, PartitionProduceResponse
from lowtide.protocol.records import ATTRIBUTES_POSITION, COMPRESSION_BITS
from lowtide.replication.partition import Partition
from lowtide.storage.log.producers.verifications import Verification
from lowtide.storage.log.validation.decompression_room import DecompressionRoom
from lowtide.storage.log.validation.rejections import Rejection
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce

NO_ROOM: Final = "too many requests wait to be checked"

LARGE_BYTES: Final = 4 << 20
"""A larger batch is slow, whatever is in it: its checksum alone takes a millisecond and more."""

ROW_BYTES: Final = 200
"""What a batch that waits takes besides its bytes, about."""


class KeptBytes(msgspec.Struct):
    """What is kept of all requests of a broker that wait for the worker, or are worked on in slices.

    Beyond `limit` what would be kept is refused: memory must not grow, and the loop not be held.
    """

    limit: int
    count: int = 0


class KeptFrame(msgspec.Struct):
    """A large frame that batches of its request keep; it is given back with the last of them."""

    frame: Any
    users: int = 0


class SlowBatch(msgspec.Struct):
    """A batch that the worker checks; `placeholder` stands in the answer until then."""

    topic: str
    partition: Partition
    records: Any
    rules: ValidationRules
    now_ms: int
    placeholder: PartitionProduceResponse
    question: Question | None = None
    """What the transaction's coordinator is to be asked first; `guard` is the verification that has to hold then."""
    guard: Verification | None = None
    kept_bytes: int = 0
    """What it takes by itself: a copy, if its frame is not kept."""
    kept_frame: KeptFrame | None = None

    def renew(self) -> None:
        """Begin the verification again, for another attempt to ask."""
        assert self.question is not None
        assert self.guard is not None
        asked, guard = self.question.transaction, self.guard
        self.guard = self.partition.log.producer_state.verifications.begin(
            asked.producer_id,
            asked.producer_epoch,
            guard.lowest_sequence,
            adds_itself=guard.adds_itself,
            now_ms=guard.began_ms,
        )

    def keep(self, others: list[SlowBatch]) -> int:
        """Keep it beyond the callback that brought it; `others` are of its request. Returns what that costs more."""
        self.kept_bytes = ROW_BYTES
        frame = _mapped_frame(self.records)
        if frame is None:
            self.records = bytes(self.records)
            self.kept_bytes += len(self.records)
            return self.kept_bytes
        shared = next(
            (other.kept_frame for other in others if other.kept_frame is not None and other.kept_frame.frame is frame),
            None,
        )
        self.kept_frame = shared or KeptFrame(frame)
        self.kept_frame.users += 1
        return self.kept_bytes + (len(frame) if shared is None else 0)

    def release(self) -> int:
        """It is not kept any more: returns what that gives back."""
        kept_bytes, self.kept_bytes = self.kept_bytes, 0
        kept, self.kept_frame = self.kept_frame, None
        if kept is not None:
            kept.users -= 1
            kept_bytes += len(kept.frame) if not kept.users else 0
        return kept_bytes

    def check(self, room: DecompressionRoom | None = None) -> ValidatedBatch | Rejection | None:
        """In the worker: touches nothing but the bytes, and `room`."""
        return validate_produce(self.records, self.rules, self.now_ms, room)


class Rest(msgspec.Struct):
    """What is left of a request's batches of one topic; their rows of the answer follow those in `results`."""

    topic: str
    rows: list[PartitionProduceData]
    results: list[PartitionProduceResponse]


def is_compressed(records: Any) -> bool:
    """Whether what a client sent as a batch is marked as compressed."""
    return (
        records is not None
        and len(records) > ATTRIBUTES_POSITION + 1
        and records[ATTRIBUTES_POSITION + 1] & COMPRESSION_BITS != 0
    )


def kept(records: Any) -> tuple[Any, int]:
    """A batch that may be kept beyond the callback that brought it, and what that costs.

    A large frame is counted whole; anything else is copied.
    """
    frame = _mapped_frame(records)
    return (bytes(records), len(records) + ROW_BYTES) if frame is None else (records, len(frame) + ROW_BYTES)


def _mapped_frame(records: Any) -> mmap | None:
    """The large frame that a batch is a part of, if it is."""
    frame = records.obj if isinstance(records, memoryview) else records
    return frame if isinstance(frame, mmap) else None


def keep(rest: list[Rest]) -> int:
    """Keep what is left of a request; returns what that costs."""
    rows = [row for left in rest for row in left.rows]
    for row in rows:
        if row.records is not None:
            records, kept_bytes = kept(row.records)
            if records is row.records:  # All of one frame.
                return kept_bytes + len(rows) * ROW_BYTES
            row.records = records
    return sum(len(row.records or b"") for row in rows) + len(rows) * ROW_BYTES
