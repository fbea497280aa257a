"""Decides whether the history of one partition contains an anomaly.

A client may rely on three promises: what a delete acknowledged is gone, what an acks=all produce acknowledged and no
delete named is there, and an offset has one value. An operation is judged by what had returned before it was invoked.
So a late answer is never held against a broker, and an operation without an answer promises nothing.

Sound only for topics with `cleanup.policy=delete`, without limits of retention, that nobody else uses.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.verification.operations import (
    FOREIGN,
    DeleteOperation,
    EraseOperation,
    Moment,
    OffsetsOperation,
    PartitionOperation,
    ProduceOperation,
    ReadOperation,
    Result,
    offsets_text,
    person_of,
)

_NONE: Final = -1
"""No serial number is known for an offset, or no offset for a serial number."""


class AnomalyKind(StrEnum):
    """The broken promises."""

    RETURNED = "a deleted record returned"
    LOG_START_FELL = "a log start fell"
    NOT_DELETED = "a delete was acknowledged above what is gone"
    OVER_DELETED = "records were deleted that no delete named"
    LOST = "an acknowledged record is missing"
    OFFSET_REUSED = "an offset was given to two records"
    DUPLICATED = "a record is at two offsets"
    NOT_SENT = "a record was read that was not written"
    ERASED_FOUND = "an erased key was found"


class Anomaly(NamedTuple):
    """A broken promise. Those of one partition with the same kind and `subject` are one anomaly, seen again."""

    kind: AnomalyKind
    subject: tuple[int, ...]
    sentence: str
    """What was seen, without the name of the partition."""
    causes: tuple[PartitionOperation, ...]
    """The operations that made the promise."""


class _PromisedErasure(NamedTuple):
    operation: EraseOperation
    below: Offset
    """Exclusive: what was acknowledged when it was invoked."""


class PartitionJudge:
    """The promises of one partition so far. Operations must return in the order of their `returned` moments."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.deletes: list[DeleteOperation] = []
        """The acknowledged ones, with rising offsets: lower ones promise nothing new."""
        self.came_back: set[int] = set()
        """The indexes of deletes of which a record was read after the acknowledgement."""
        self.acknowledged_end: Offset = 0
        """Exclusive: behind the last acknowledged record."""
        self.faults_until: float = -1
        """The number of the moment at which the last fault ended; infinite during a fault. What was deleted before and
        is read later has returned."""
        self._serial_at = array("q")
        self._offset_of = array("q")
        self._acknowledged = bytearray()
        self._refused: set[int] = set()
        self._pending_deletes: dict[int, Offset] = {}
        self._possible_delete: Offset = 0
        """The highest offset of deletes that have returned, except refused ones."""
        self._gone_below: dict[int, Offset] = {}
        """By broker: it has shown that nothing below this offset was readable."""
        self._log_starts: dict[int, list[tuple[int, Offset]]] = {}
        """By broker: when it answered with a higher log start than before, and which."""
        self._erasures: dict[int, list[_PromisedErasure]] = {}
        self._ends_at_invocation: dict[int, Offset] = {}
        self._pending_erasures: dict[int, int] = {}
        self._may_lack: dict[int, float] = {}
        """By person: an erasure that has returned may have removed records below this offset."""

    # ------------------------------------------------------------------ what clients do
    def invoke(self, operation: PartitionOperation) -> None:
        """Notes what the operation may change."""
        number = operation.invoked.number
        self._ends_at_invocation[number] = self.acknowledged_end
        if isinstance(operation, DeleteOperation):
            self._pending_deletes[number] = operation.offset
        elif isinstance(operation, ProduceOperation):
            missing = operation.first_serial + operation.count - len(self._offset_of)
            self._offset_of.extend([_NONE] * max(missing, 0))
        elif isinstance(operation, EraseOperation):
            self._pending_erasures[number] = operation.person

    def complete(self, operation: PartitionOperation) -> list[Anomaly]:
        """Takes an operation that has returned; returns the anomalies that it shows."""
        end = self._ends_at_invocation.pop(operation.invoked.number)
        if isinstance(operation, ProduceOperation):
            return list(self._on_produce(operation, end))
        if isinstance(operation, DeleteOperation):
            return list(self._on_delete(operation))
        if isinstance(operation, OffsetsOperation):
            return list(self._on_log_start(operation, operation.log_start))
        if isinstance(operation, EraseOperation):
            self._on_erase(operation, end)
            return []
        assert isinstance(operation, ReadOperation), operation
        return list(self._on_read(operation))

    def delete_before(self, moment: Moment) -> DeleteOperation | None:
        """Returns the highest delete that was acknowledged before the moment."""
        count = bisect_left(self.deletes, moment.number, key=_returned_number)
        return self.deletes[count - 1] if count else None

    @property
    def possible_delete(self) -> Offset:
        """The highest offset of all deletes that may have been done, also of pending and unanswered ones."""
        return max(self._possible_delete, *self._pending_deletes.values(), 0)

    def person_at(self, offset: Offset) -> int:
        """Returns the person whose record is at an offset; any one if none is known to be there."""
        return person_of(self._serial_at[offset] if offset < len(self._serial_at) else 0)

    # ------------------------------------------------------------------ changes
    def _on_produce(self, operation: ProduceOperation, end: Offset) -> Iterator[Anomaly]:
        serials = range(operation.first_serial, operation.first_serial + operation.count)
        if operation.result is Result.REFUSED:
            self._refused.update(serials)
            for serial in serials:
                if self._offset_of[serial] != _NONE:
                    yield self._not_sent(self._offset_of[serial], "a record that was refused", operation)
        if operation.result is not Result.OK:
            return
        base = operation.base_offset
        if base < end:
            sentence = f"A record was acknowledged at offset {base}; offset {end - 1} was acknowledged before."
            yield Anomaly(AnomalyKind.OFFSET_REUSED, (base,), sentence, ())
        for offset, serial in enumerate(serials, base):
            yield from self._place(offset, serial)
            self._acknowledged[offset] = 1
        self.acknowledged_end = max(self.acknowledged_end, base + operation.count)

    def _on_delete(self, operation: DeleteOperation) -> Iterator[Anomaly]:
        del self._pending_deletes[operation.invoked.number]
        if operation.result is not Result.REFUSED:
            self._possible_delete = max(self._possible_delete, operation.offset)
        if operation.result is not Result.OK:
            return
        offset, low_watermark = operation.offset, operation.low_watermark
        if low_watermark < offset:
            sentence = f"A delete below {offset} was acknowledged with the low watermark {low_watermark}."
            yield Anomaly(AnomalyKind.NOT_DELETED, (offset, low_watermark), sentence, (operation,))
        # It may be below earlier deletes: it is the lowest log start of the live replicas (KIP-107), and one may have
        # returned that does not serve yet.
        yield from self._check_upper_bound(operation, low_watermark, "the low watermark is")
        if offset > (self.deletes[-1].offset if self.deletes else 0):
            self.deletes.append(operation)

    def _on_erase(self, operation: EraseOperation, end: Offset) -> None:
        person = self._pending_erasures.pop(operation.invoked.number)
        if operation.result is Result.OK:
            self._erasures.setdefault(person, []).append(_PromisedErasure(operation, end))
            self._may_lack[person] = max(self._may_lack.get(person, 0), operation.searched_to)
        elif operation.result is Result.UNKNOWN:
            self._may_lack[person] = math.inf

    # ------------------------------------------------------------------ what readers see
    def _on_read(self, operation: ReadOperation) -> Iterator[Anomaly]:
        if operation.result is Result.UNKNOWN:
            return
        promise = self.delete_before(operation.invoked)
        yield from self._on_log_start(operation, operation.log_start)
        if operation.records:
            yield from self._on_records(operation, promise)
        elif operation.result is Result.REFUSED and promise is not None and operation.start < promise.offset:
            self._show_gone(operation, operation.start + 1)  # The answer is OFFSET_OUT_OF_RANGE.
        end = max(operation.end, operation.expected_end)
        if end > operation.start:
            yield from self._check_complete(operation, range(operation.start, end))

    def _on_records(self, operation: ReadOperation, promise: DeleteOperation | None) -> Iterator[Anomaly]:
        for offset, serial in operation.records:
            if serial == FOREIGN:
                yield self._not_sent(offset, "a value that this run never sent to the partition", operation)
                continue
            if serial in self._refused:
                yield self._not_sent(offset, "a record that was refused", operation)
            yield from self._place(offset, serial)
            yield from self._check_erased(operation, offset, serial)
        first = operation.records[0][0]
        if promise is None or first >= promise.offset:
            return
        back = [offset for offset, _ in operation.records if offset < promise.offset]
        self.came_back.update(self._deletes_of(back))
        was_gone = self._gone_below.get(operation.broker, 0) >= promise.offset
        since_fault = _returned_number(promise) < self.faults_until
        kind = AnomalyKind.RETURNED if was_gone or since_fault else AnomalyKind.NOT_DELETED
        where = f"broker {operation.broker}{'' if operation.leader else ', as a follower,'}"
        sentence = (
            f"{where} returned {offsets_text(first, back[-1])}; a delete below {promise.offset} was acknowledged before"
        )
        yield Anomaly(kind, (operation.broker, promise.offset), _sentence(sentence), (promise,))

    def _deletes_of(self, offsets: Iterable[Offset]) -> set[int]:
        """Returns the indexes of the deletes that deleted these offsets."""
        return {bisect_left(self.deletes, offset + 1, key=_offset_of) for offset in offsets}

    def _check_complete(self, operation: ReadOperation, expected: range) -> Iterator[Anomaly]:
        """Checks that a reader got all acknowledged records of a range, except deleted and erased ones."""
        possible = self.possible_delete
        got = {offset for offset, _ in operation.records}
        until = min(expected.stop, len(self._acknowledged))
        missing = [
            offset
            for offset in range(max(expected.start, possible), until)
            if self._acknowledged[offset] and offset not in got and not self._may_be_erased(offset)
        ]
        if missing:
            sentence = (
                f"broker {operation.broker} returned {len(operation.records)} records from {operation.start} on, "
                f"without {len(missing)} acknowledged ones: {offsets_text(missing[0], missing[0])} is the first, no "
                f"delete was sent above {possible}"
            )
            yield Anomaly(AnomalyKind.LOST, (operation.broker, missing[0]), _sentence(sentence), ())

    def _may_be_erased(self, offset: Offset) -> bool:
        person = person_of(self._serial_at[offset])
        return offset < self._may_lack.get(person, 0) or person in self._pending_erasures.values()

    def _check_erased(self, operation: ReadOperation, offset: Offset, serial: int) -> Iterator[Anomaly]:
        for erasure in self._erasures.get(person_of(serial), ()):
            returned = erasure.operation.returned
            assert returned is not None
            if offset < erasure.below and returned.number < operation.invoked.number:
                person = erasure.operation.person
                sentence = (
                    f"broker {operation.broker} returned offset {offset} of person {person}, who was erased before"
                )
                yield Anomaly(
                    AnomalyKind.ERASED_FOUND, (operation.broker, person), _sentence(sentence), (erasure.operation,)
                )
                return

    def _on_log_start(self, operation: OffsetsOperation | ReadOperation, log_start: Offset) -> Iterator[Anomaly]:
        if log_start < 0:
            return
        wrong = list(self._check_bounds(operation, log_start))
        yield from wrong
        told = self._log_starts.setdefault(operation.broker, [])
        count = bisect_left(told, (operation.invoked.number, 0))
        if not wrong and count and told[count - 1][1] > log_start:
            before = told[count - 1][1]
            sentence = f"broker {operation.broker} answered that the log starts at {before}, and then at {log_start}"
            yield Anomaly(AnomalyKind.LOG_START_FELL, (operation.broker, before), _sentence(sentence), ())
        assert operation.returned is not None
        if log_start > (told[-1][1] if told else -1):
            told.append((operation.returned.number, log_start))
        self._show_gone(operation, log_start)

    def _show_gone(self, operation: PartitionOperation, offset: Offset) -> None:
        self._gone_below[operation.broker] = max(self._gone_below.get(operation.broker, 0), offset)

    def _check_bounds(self, operation: PartitionOperation, log_start: Offset) -> Iterator[Anomaly]:
        """Checks a log start against the deletes."""
        promise = self.delete_before(operation.invoked)
        if promise is not None and log_start < promise.offset:
            sentence = (
                f"broker {operation.broker} answered that the log starts at {log_start}; a delete below "
                f"{promise.offset} was acknowledged before"
            )
            subject = (operation.broker, promise.offset)
            yield Anomaly(AnomalyKind.LOG_START_FELL, subject, _sentence(sentence), (promise,))
        yield from self._check_upper_bound(operation, log_start, "the log starts at")

    def _check_upper_bound(self, operation: PartitionOperation, offset: Offset, what: str) -> Iterator[Anomaly]:
        """Checks that a log start, or the lowest one, is at most where a delete may have moved it."""
        possible = self.possible_delete
        if offset > possible:
            sentence = f"broker {operation.broker} answered that {what} {offset}; no delete was sent above {possible}"
            yield Anomaly(AnomalyKind.OVER_DELETED, (operation.broker, possible), _sentence(sentence), ())

    # ------------------------------------------------------------------ values
    def _place(self, offset: Offset, serial: int) -> Iterator[Anomaly]:
        """Notes that a record is at an offset, for good."""
        if offset >= len(self._serial_at):
            more = offset + 1 - len(self._serial_at)
            self._serial_at.extend([_NONE] * more)
            self._acknowledged.extend(bytes(more))
        there, place = self._serial_at[offset], self._offset_of[serial]
        if there not in (_NONE, serial):
            sentence = f"Offset {offset} had the record number {there}, and then {serial}."
            yield Anomaly(AnomalyKind.OFFSET_REUSED, (offset,), sentence, ())
            return
        if place not in (_NONE, offset):
            sentence = f"The record number {serial}, which was sent once, is at offset {place} and at {offset}."
            yield Anomaly(AnomalyKind.DUPLICATED, (serial,), sentence, ())
            return
        self._serial_at[offset], self._offset_of[serial] = serial, offset

    def _not_sent(self, offset: Offset, what: str, operation: PartitionOperation) -> Anomaly:
        return Anomaly(
            AnomalyKind.NOT_SENT, (offset,), f"Offset {offset} has {what}.", (operation,) if operation.error else ()
        )


def _returned_number(operation: DeleteOperation) -> int:
    assert operation.returned is not None
    return operation.returned.number


def _offset_of(operation: DeleteOperation) -> Offset:
    return operation.offset


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
