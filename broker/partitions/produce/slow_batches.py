"""Batches of a Produce request that wait: for the worker, a coordinator, or their slice.

Received bytes are valid only in the callback that brought them, so a batch that waits is copied; a large frame is
mapped for its request alone and is kept instead.
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

LARGE_BYTES: Final = 4 << 20
"""The worker checks a larger batch: its checksum alone takes a millisecond or more."""

ROW_BYTES: Final = 200
"""The memory of a waiting batch besides its bytes, about."""

NO_ROOM: Final = "too many requests wait to be checked"


class KeptBytes(msgspec.Struct):
    """The memory of all waiting batches of a broker. Above `limit` further ones are refused."""

    limit: int
    count: int = 0


class KeptFrame(msgspec.Struct):
    """A large frame that batches of its request keep; it is released with the last of them."""

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
    """The question to the transaction's coordinator; `guard` is the verification that must still hold afterwards."""
    guard: Verification | None = None
    kept_bytes: int = 0
    """The memory of its own: a copy, if its frame is not kept."""
    kept_frame: KeptFrame | None = None

    def renew(self) -> None:
        """Begins the verification again, for another attempt to ask."""
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
        """Keeps it beyond the callback that brought it. Returns the memory, less what `others` of its request keep."""
        self.kept_bytes = ROW_BYTES
        frame = mapped_frame(self.records)
        if frame is None:
            self.records = bytes(self.records)
            self.kept_bytes += len(self.records)
            return self.kept_bytes
        shared = next((each.kept_frame for each in others if each.kept_frame and each.kept_frame.frame is frame), None)
        self.kept_frame = shared or KeptFrame(frame)
        self.kept_frame.users += 1
        return self.kept_bytes + (len(frame) if shared is None else 0)

    def release(self) -> int:
        """Returns the memory that is no longer kept."""
        kept_bytes, self.kept_bytes = self.kept_bytes, 0
        kept, self.kept_frame = self.kept_frame, None
        if kept is not None:
            kept.users -= 1
            kept_bytes += len(kept.frame) if not kept.users else 0
        return kept_bytes

    def check(self, room: DecompressionRoom | None = None) -> ValidatedBatch | Rejection | None:
        """Validates the batch in the worker: uses only its bytes and `room`."""
        return validate_produce(self.records, self.rules, self.now_ms, room)


class Rest(msgspec.Struct):
    """The remaining batches of one topic of a request; their rows of the answer follow those in `results`."""

    topic: str
    rows: list[PartitionProduceData]
    results: list[PartitionProduceResponse]

    def keep(self) -> int:
        """Keeps the batches beyond the callback that brought them. Returns the memory without a mapped frame."""
        kept_bytes = 0
        for row in self.rows:
            records: Any = row.records
            kept_bytes += ROW_BYTES
            if records is not None and mapped_frame(records) is None:
                row.records = bytes(records)
                kept_bytes += len(records)
        return kept_bytes


def is_compressed(records: Any) -> bool:
    """Returns whether a received batch is marked as compressed."""
    return (
        records is not None
        and len(records) > ATTRIBUTES_POSITION + 1
        and records[ATTRIBUTES_POSITION + 1] & COMPRESSION_BITS != 0
    )


def mapped_frame(records: Any) -> mmap | None:
    """Returns the large frame that a batch is a part of; None if it is part of another one."""
    frame = records.obj if isinstance(records, memoryview) else records
    return frame if isinstance(frame, mmap) else None
