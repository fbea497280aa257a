"""Records what members saw of one share group of a topic, and checks that it was allowed.

Checked (letters of the invariants): G7 a record is delivered at most as often as the limit allows, however its
deliveries end, each delivery is counted, and no record is delivered to a second member while the first one has it, or
after its acceptance; G8 a record that no member can process does not block others: in the end each of the others is
accepted.

A new leader does not know pending deliveries (as in Kafka), so after an election counts are checked as bounds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowtide.simulation.history import HistoryError

Record = tuple[int, int]


class Held(msgspec.Struct, frozen=True):
    """A record that a member has acquired."""

    member: str
    until_ms: int
    """The earliest expiry of its lock."""


class ShareHistory:
    """The history of one share group in one topic."""

    def __init__(self, limit: int, lock_ms: int) -> None:
        """`limit` is `share.delivery.count.limit`. No lock expires within `lock_ms` after a delivery."""
        self.limit = limit
        self.counts: dict[Record, int] = {}
        """The last delivery count."""
        self.accepted: set[Record] = set()
        self.unknown: set[Record] = set()
        """Accepted without a response."""
        self._lock_ms = lock_ms
        self._held: dict[Record, Held] = {}
        self._is_exact = True

    def on_leader_lost(self) -> None:
        """Notes that a leader died, whose successor redelivers acquired records."""
        self._is_exact = False
        self._held.clear()

    def on_delivered(self, member: str, record: Record, count: int, now_ms: int) -> None:
        before = self.counts.get(record, 0)
        if count > self.limit:
            self._fail(f"G7: {record} is delivered for the {count}th time, and the limit is {self.limit}")
        if count > before + 1 or (self._is_exact and count != before + 1):
            self._fail(f"G7: {record} is delivered with the count {count} after {before}")
        if record in self.accepted:
            self._fail(f"G7: {record} is delivered to {member} after it was accepted")
        held = self._held.get(record)
        if held is not None and now_ms < held.until_ms:
            self._fail(f"G7: {record} is delivered to {member} while {held.member} has it")
        self.counts[record] = count
        self._held[record] = Held(member, now_ms + self._lock_ms)

    def on_end_asked(self, records: Iterable[Record]) -> None:
        """Notes that a member ends deliveries or leaves: others may get the records from now on."""
        for record in records:
            self._held.pop(record, None)

    def on_accepted(self, records: Iterable[Record]) -> None:
        self.accepted.update(records)

    def on_lost(self, records: Iterable[Record]) -> None:
        """Notes that the response to an acknowledgement was lost, so its effect is unknown."""
        self.unknown.update(records)

    def lacking(self, good: Iterable[Record]) -> list[Record]:
        """Returns processable records that no member has accepted yet."""
        return [record for record in good if record not in self.accepted and record not in self.unknown]

    def check_end(self, good: Iterable[Record]) -> None:
        lacking = self.lacking(good)
        if lacking:
            self._fail(
                f"G8: {lacking} could be processed, and were accepted by no member; delivered "
                f"{[self.counts.get(x) for x in lacking]}"
            )

    @staticmethod
    def _fail(text: str) -> None:
        raise HistoryError(text)
