"""Records what clients saw of one partition of one broker, and checks that it was allowed.

The checker knows acknowledged requests, requests without response, and reads. It learns of crashes that may lose
unflushed records (power cuts), and of those that may not (kills).

Checked (letters of the invariants): D1 an acknowledged delete stays; D7 nothing is deleted without a request; D10 the
log end never falls and no offset is reused; D12 a lower delete changes nothing; R1 acknowledged records stay; R2 one
value per offset; R3 no gap between log start and log end; R4 nothing is read that was never sent.
"""

from __future__ import annotations

from collections.abc import Mapping


class HistoryError(AssertionError):
    """A broker broke a promise."""


class PartitionHistory:
    """The history of one partition."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.attempted: set[bytes] = set()
        self.refused: set[bytes] = set()
        self.seen: dict[int, bytes] = {}
        self.requested_delete = 0
        self.acknowledged_delete = 0
        self.lowest_end = 0

    # ------------------------------------------------------------------ what clients did
    def on_send(self, values: list[bytes]) -> None:
        """Records new values; each value is sent once."""
        self.attempted.update(values)

    def on_acknowledged(self, base_offset: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, base_offset):
            known = self.seen.get(offset) or self.acknowledged.get(offset)
            if known is not None and known != value:
                self._fail(f"offset {offset} was given to {known!r} and then to {value!r}")
            self.acknowledged[offset] = value
        self.lowest_end = max(self.lowest_end, base_offset + len(values))

    def on_refused(self, values: list[bytes]) -> None:
        """Notes records that were rejected with an error which proves that they were not written."""
        self.refused.update(values)

    def on_delete(self, offset: int) -> None:
        """Notes that a delete to `offset` (exclusive, resolved) was sent."""
        self.requested_delete = max(self.requested_delete, offset)

    def on_delete_acknowledged(self, offset: int, low_watermark: int) -> None:
        if low_watermark < offset:
            self._fail(f"a delete to {offset} was acknowledged with the low watermark {low_watermark}")
        self.acknowledged_delete = max(self.acknowledged_delete, offset)

    def on_records_may_be_lost(self, surviving_end: int) -> None:
        """Notes that a power cut may lose unflushed records from `surviving_end` on, whose offsets are then reused."""
        for known in (self.acknowledged, self.seen):
            for offset in [offset for offset in known if offset >= surviving_end]:
                del known[offset]
        self.lowest_end = min(self.lowest_end, surviving_end)

    def on_truncated(self, end: int) -> None:
        """Notes that an unclean election truncated the log below its start: it is empty and starts at `end`."""
        self.acknowledged.clear()
        self.seen.clear()
        self.lowest_end = end
        self.acknowledged_delete = self.requested_delete = end

    # ------------------------------------------------------------------ what readers saw
    def on_bounds(self, log_start_offset: int, log_end_offset: int) -> None:
        """Checks the offsets of ListOffsets or of a fetch response."""
        if log_start_offset < self.acknowledged_delete:
            self._fail(
                f"the log starts at {log_start_offset}, records below {self.acknowledged_delete} are deleted for good"
            )
        if log_start_offset > max(self.requested_delete, 0):
            self._fail(f"the log starts at {log_start_offset}, no request deletes beyond {self.requested_delete}")
        if log_end_offset < self.lowest_end:
            self._fail(f"the log ends at {log_end_offset}, {self.lowest_end} was reached before")
        if log_start_offset > log_end_offset:
            self._fail(f"the log starts at {log_start_offset} and ends at {log_end_offset}")

    def on_read(self, records: Mapping[int, bytes], *, start: int, end: int, complete: bool) -> None:
        """Checks records read from `start`; all of [start, end) if `complete`."""
        for offset, value in records.items():
            if offset < start:
                self._fail(f"offset {offset} was delivered to a reader from {start}")
            self._check_value(offset, value)
        if complete:
            missing = [offset for offset in range(start, end) if offset not in records]
            if missing:
                self._fail(f"offsets {missing[:5]} are missing between {start} and {end}")
            for offset, value in self.acknowledged.items():
                if start <= offset < end and records.get(offset) != value:
                    self._fail(f"acknowledged offset {offset} holds {records.get(offset)!r} instead of {value!r}")

    def _check_value(self, offset: int, value: bytes) -> None:
        if value not in self.attempted:
            self._fail(f"offset {offset} holds {value!r}, which no client sent")
        if value in self.refused:
            self._fail(f"offset {offset} holds {value!r}, which was refused")
        known = self.acknowledged.get(offset, self.seen.get(offset))
        if known is not None and known != value:
            self._fail(f"offset {offset} held {known!r} and now {value!r}")
        self.seen[offset] = value

    def _fail(self, reason: str) -> None:
        raise HistoryError(reason)
