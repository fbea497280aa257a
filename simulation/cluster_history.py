"""What clients of one partition of a cluster saw, and whether brokers may have shown them that.

Beyond `history`: several brokers answer, some of them late or wrong about who leads, so what a reader may see is judged
by what was acknowledged before it asked. Deletes are ordinary, or of the leader only; producers repeat themselves, or
ask for one replica only.

Checked (letters of the invariants): D1 what was deleted with an acknowledgement before a read began isn't read, from
any replica; D3 what a success says; D7 nothing is deleted without a request; D10 and R2 one value at an offset; R1
acknowledged records stay; R3 no gap; R4 nothing refused or never sent is read; R5 no value twice; R6 an idempotent
producer's records lie in the order of sending.

When records were lost legitimately (`void_records`: too many replicas lost what they had not flushed, or a leader was
elected uncleanly) what holds of records is forgotten, and what holds of deletes stays. An unclean election ends that
too (`void_deletes`): deletes count again that are asked for after it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from lowtide.protocol.types import Offset
from lowtide.simulation.history import HistoryError

SENT_MEANWHILE: Final = 200
"""So many records may be sent between a delete to the high watermark and its being carried out."""


class Sent(NamedTuple):
    """A value's sender and place in its order; producers that aren't idempotent have no order."""

    producer: int
    serial: int
    ordered: bool


class ClusterPartitionHistory:
    """The history of one partition of one topic id."""

    def __init__(self, name: str) -> None:
        """`name` is for messages."""
        self.name = name
        self.sent: dict[bytes, Sent] = {}
        self.refused: set[bytes] = set()
        self.acknowledged: dict[Offset, bytes] = {}
        self.seen: dict[Offset, bytes] = {}
        self.places: dict[bytes, Offset] = {}
        self.requested_delete = 0
        self.acknowledged_delete = 0
        self.acknowledged_end = 0
        self.records_are_void = False
        self._deletes_void_s = -1.0

    # What clients did

    def on_send(self, values: list[bytes], producer: int, first_serial: int, *, ordered: bool) -> None:
        """Records were sent, for the first time; each value is sent once in a history, or again by the producer's own retries."""
        for serial, value in enumerate(values, first_serial):
            self.sent[value] = Sent(producer, serial, ordered)

    def on_acknowledged(self, base_offset: Offset, values: list[bytes]) -> None:
        """All in-sync replicas have them, at `base_offset` and on."""
        if self.records_are_void:
            return
        for offset, value in enumerate(values, base_offset):
            self._place(offset, value)
            self.acknowledged[offset] = value
        self.acknowledged_end = max(self.acknowledged_end, base_offset + len(values))

    def on_refused(self, values: list[bytes]) -> None:
        """Records were refused for good: no attempt of them was written."""
        self.refused.update(values)
        for value in values:
            if value in self.places:
                self.fail(f"R4: {value[:20]!r} was refused, and stands at offset {self.places[value]}")

    def on_delete(self, offset: Offset | None) -> None:
        """A delete to `offset` (exclusive) was sent; None is one to the high watermark, which may be as high as everything sent."""
        self.requested_delete = max(
            self.requested_delete, len(self.sent) + SENT_MEANWHILE if offset is None else offset
        )

    def on_delete_acknowledged(self, offset: Offset | None, low_watermark: Offset, sent_s: float = math.inf) -> Offset:
        """An ordinary delete succeeded that was asked for at `sent_s`. Returns what is deleted for good (exclusive)."""
        if offset is None:
            offset = low_watermark
        if low_watermark < offset:
            self.fail(f"D3: a delete to {offset} was acknowledged with the low watermark {low_watermark}")
        if sent_s > self._deletes_void_s:
            self.acknowledged_delete = max(self.acknowledged_delete, offset)
        return offset

    def forget_read(self, end_offset: Offset) -> None:
        """What stood at `end_offset` or above may be gone, if it wasn't acknowledged: readers may have seen it before it was flushed."""
        for offset in [offset for offset in self.seen if offset >= end_offset and offset not in self.acknowledged]:
            self.places.pop(self.seen.pop(offset), None)

    def void_records(self) -> None:
        """Records may have been lost."""
        if not self.records_are_void:
            self.records_are_void = True
            self.acknowledged.clear()
            self.seen.clear()
            self.places.clear()
            self.acknowledged_end = 0

    def void_deletes(self, now_s: float) -> None:
        """A replica that lacks acknowledged deletes may lead."""
        self._deletes_void_s = now_s
        self.acknowledged_delete = 0

    def restore_records(self, log_start_offset: Offset) -> None:
        """From now on everything holds again, of what is there now and of what comes; no replica starts above `log_start_offset` now."""
        self.records_are_void = False
        self.requested_delete = max(self.requested_delete, log_start_offset)

    # What readers saw

    def on_log_start(self, log_start_offset: Offset, *, deleted_before: Offset) -> None:
        """An answer contains a log start; `deleted_before` was acknowledged as deleted when it was asked for."""
        if log_start_offset < min(deleted_before, self.acknowledged_delete):
            self.fail(
                f"D1: an answer says that the log starts at {log_start_offset}, {deleted_before} was deleted before"
            )
        if log_start_offset > self.requested_delete and not self.records_are_void:
            self.fail(f"D7: the log starts at {log_start_offset}, no request deletes beyond {self.requested_delete}")

    def on_log_end(self, log_end_offset: Offset, *, acknowledged_before: Offset) -> None:
        """A leader reports the end of its log for readers."""
        if log_end_offset < acknowledged_before and not self.records_are_void:
            self.fail(f"R1: the log ends at {log_end_offset}, {acknowledged_before} was acknowledged before")

    def on_read(self, records: Mapping[Offset, bytes], *, start: Offset, deleted_before: Offset) -> None:
        """Records came to a reader that asked from `start` on, all that are there up to the last."""
        if not records:
            return
        first, last = min(records), max(records)
        if first < start:
            self.fail(f"offset {first} was delivered to a reader from {start}")
        if start < min(deleted_before, self.acknowledged_delete):
            self.fail(
                f"D1: a reader from {start} got {first} to {last}, and {deleted_before} was deleted before it asked"
            )
        self.check_gaps(records, start, last)
        for offset, value in records.items():
            if value not in self.sent:
                self.fail(f"R4: offset {offset} holds {value[:40]!r}, which no client sent")
            if value in self.refused:
                self.fail(f"R4: offset {offset} holds {value[:40]!r}, which was refused")
            if not self.records_are_void:
                self._place(offset, value)
                self.seen[offset] = value

    def check_gaps(self, records: Container[Offset], start: Offset, last: Offset) -> None:
        """R3: a reader got all from `start` to `last` (inclusive)."""
        missing = [offset for offset in range(start, last) if offset not in records]
        if missing:
            self.fail(f"R3: a reader from {start} to {last} didn't get {missing[:5]}")

    def check_order(self) -> None:
        """R6: at the end, over everything that was placed."""
        last: dict[int, tuple[int, Offset]] = {}
        for offset in sorted(self.seen):
            sent = self.sent[self.seen[offset]]
            if sent.ordered:
                serial, before = last.get(sent.producer, (-1, -1))
                if sent.serial <= serial:
                    self.fail(
                        f"R6: producer {sent.producer} sent {serial} at {before} before {sent.serial} at {offset}"
                    )
                last[sent.producer] = (sent.serial, offset)

    def _place(self, offset: Offset, value: bytes) -> None:
        known = self.acknowledged.get(offset, self.seen.get(offset))
        if known is not None and known != value:
            self.fail(f"R2: offset {offset} held {known[:40]!r} and now {value[:40]!r}")
        place = self.places.setdefault(value, offset)
        if place != offset and place < self.requested_delete:
            # Its first copy was deleted, and a replica that starts again above it has no state of its producer, as in
            # Kafka.
            self.places[value] = offset
            self.seen.pop(place, None)
        elif place != offset:
            self.fail(f"R5: {value[:40]!r} stands at {place} and at {offset}")

    def fail(self, reason: str) -> None:
        """Errors: HistoryError, always."""
        raise HistoryError(f"{self.name}: {reason}")
