"""Records what clients saw of one partition of a cluster, and checks that it was allowed.

Unlike `history`, several brokers answer, some late or wrong about the leader, so reads are judged by what was
acknowledged before them. Deletes are ordinary or leader-only; producers retry, or use acks=1.

Checked (letters of the invariants): D1 records deleted with an acknowledgement before a read are not read from any
replica; D3 the content of a success; D7 nothing is deleted without a request; D10 and R2 one value per offset; R1
acknowledged records stay; R3 no gap; R4 nothing rejected or never sent is read; R5 no value twice; R6 an idempotent
producer's records are in order.

After a legitimate loss of records (`void_records`: too many replicas lost unflushed data, or an unclean election)
knowledge of records is dropped, and that of deletes kept. An unclean election drops that too (`void_deletes`), except
for later deletes.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Final, NamedTuple

from lowtide.protocol.types import Offset
from lowtide.simulation.erased_history import ErasedHistory
from lowtide.simulation.history import HistoryError

SENT_MEANWHILE: Final = 200
"""The maximum number of records sent between a delete to the high watermark and its execution."""


class Sent(NamedTuple):
    """A value's sender and sequence; producers without idempotence have no order."""

    producer: int
    serial: int
    ordered: bool


class ClusterPartitionHistory:
    """The history of one partition of one topic id."""

    def __init__(self, name: str) -> None:
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
        self.voids = 0
        """How often knowledge of records was dropped."""
        self.erasures: ErasedHistory | None = None
        """If erasures are part of the run."""
        self._deletes_void_s = -1.0

    # What clients did

    def on_send(self, values: list[bytes], producer: int, first_serial: int, *, ordered: bool) -> None:
        """Records new values; each value is sent once, or again by the producer's retries."""
        for serial, value in enumerate(values, first_serial):
            self.sent[value] = Sent(producer, serial, ordered)

    def on_acknowledged(self, base_offset: Offset, values: list[bytes]) -> None:
        """Records that all in-sync replicas have them, from `base_offset`."""
        if self.records_are_void:
            return
        for offset, value in enumerate(values, base_offset):
            self._place(offset, value)
            self.acknowledged[offset] = value
        self.acknowledged_end = max(self.acknowledged_end, base_offset + len(values))

    def on_refused(self, values: list[bytes]) -> None:
        """Records that they were rejected: no attempt was written."""
        self.refused.update(values)
        for value in values:
            if value in self.places:
                self.fail(f"R4: {value[:20]!r} was refused, and stands at offset {self.places[value]}")

    def on_delete(self, offset: Offset | None) -> None:
        """Records a delete to `offset` (exclusive); None is the high watermark, at most everything sent."""
        self.requested_delete = max(
            self.requested_delete, len(self.sent) + SENT_MEANWHILE if offset is None else offset
        )

    def on_delete_acknowledged(self, offset: Offset | None, low_watermark: Offset, sent_s: float = math.inf) -> Offset:
        """Records an acknowledged ordinary delete, sent at `sent_s`. Returns the deleted prefix (exclusive)."""
        if offset is None:
            offset = low_watermark
        if low_watermark < offset:
            self.fail(f"D3: a delete to {offset} was acknowledged with the low watermark {low_watermark}")
        if sent_s > self._deletes_void_s:
            self.acknowledged_delete = max(self.acknowledged_delete, offset)
        return offset

    def forget_read(self, end_offset: Offset) -> None:
        """Forgets unacknowledged records from `end_offset`, which readers may have seen before they were flushed."""
        for offset in [offset for offset in self.seen if offset >= end_offset and offset not in self.acknowledged]:
            self.places.pop(self.seen.pop(offset), None)
        if self.erasures is not None:
            self.erasures.forget_from(end_offset)

    def void_records(self) -> None:
        self.voids += 1
        if self.erasures is not None:
            self.erasures.void_records()
        if not self.records_are_void:
            self.records_are_void = True
            self.acknowledged.clear()
            self.seen.clear()
            self.places.clear()
            self.acknowledged_end = 0

    def void_deletes(self, now_s: float) -> None:
        """Handles a leader that may lack acknowledged deletes."""
        self._deletes_void_s = now_s
        self.acknowledged_delete = 0
        if self.erasures is not None:
            self.erasures.void_deletes()

    def restore_records(self, log_start_offset: Offset) -> None:
        """Restores all checks for the present and later records; no replica starts above `log_start_offset` now."""
        self.records_are_void = False
        self.requested_delete = max(self.requested_delete, log_start_offset)

    # What readers saw

    def on_log_start(self, log_start_offset: Offset, *, deleted_before: Offset) -> None:
        """Checks a log start offset; `deleted_before` was deleted with an acknowledgement before the request."""
        if log_start_offset < min(deleted_before, self.acknowledged_delete):
            self.fail(
                f"D1: an answer says that the log starts at {log_start_offset}, {deleted_before} was deleted before"
            )
        if log_start_offset > self.requested_delete and not self.records_are_void:
            self.fail(f"D7: the log starts at {log_start_offset}, no request deletes beyond {self.requested_delete}")

    def on_log_end(self, log_end_offset: Offset, *, acknowledged_before: Offset) -> None:
        """Checks the end of the log for readers."""
        if log_end_offset < acknowledged_before and not self.records_are_void:
            self.fail(f"R1: the log ends at {log_end_offset}, {acknowledged_before} was acknowledged before")

    def on_read(self, records: Mapping[Offset, bytes], *, start: Offset, deleted_before: Offset) -> None:
        """Checks records read from `start`, complete up to the last."""
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
        """Checks that a reader got everything from `start` to `last` (inclusive; R3)."""
        missing = [offset for offset in range(start, last) if offset not in records and not self._may_lack(offset)]
        if missing:
            self.fail(f"R3: a reader from {start} to {last} didn't get {missing[:5]}")

    def _may_lack(self, offset: Offset) -> bool:
        """Returns whether an erasure is at the offset, or names it (E2)."""
        return self.erasures is not None and self.erasures.may_lack(offset)

    def value_at(self, offset: Offset) -> bytes | None:
        """Returns what is known to be at the offset."""
        return self.acknowledged.get(offset, self.seen.get(offset))

    def check_place(self, offset: Offset, value: bytes) -> None:
        """Checks a record that is on a replica (R2)."""
        known = self.value_at(offset)
        if known is not None and known != value:
            self.fail(f"R2: offset {offset} held {known[:40]!r}, and a replica has {value[:40]!r}")

    def check_order(self) -> None:
        """Checks the order of all placed records, at the end (R6)."""
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
        known = self.value_at(offset)
        if known is not None and known != value:
            self.fail(f"R2: offset {offset} held {known[:40]!r} and now {value[:40]!r}")
        place = self.places.setdefault(value, offset)
        if place != offset and place < self.requested_delete:
            # Its first copy was deleted, and a replica that starts again above it has no state of its producer, as in
            # Kafka.
            self.places[value] = offset
            self.seen.pop(place, None)
            if self.erasures is not None:
                self.erasures.on_written_again(value)
        elif place != offset:
            self.fail(f"R5: {value[:40]!r} stands at {place} and at {offset}")

    def fail(self, reason: str) -> None:
        """Raises HistoryError."""
        raise HistoryError(f"{self.name}: {reason}")
