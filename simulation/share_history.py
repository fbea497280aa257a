"""What members of one share group were given of the records of a topic, and whether leaders may have given them that.

Checked (letters of the invariants): G7 a record is delivered at most as often as the limit allows, whichever way its
deliveries end, each delivery is counted, and no record is delivered to a second member while the first one has it, or
after it was accepted; G8 a record that no member can process costs no other record: in the end each of the others is
accepted.

A new leader doesn't know which deliveries were under way (as in Kafka): behind one the counts are checked as bounds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lowtide.simulation.history import HistoryError

Record = tuple[int, int]
"""Partition and offset."""


class Held(msgspec.Struct, frozen=True):
    """A record that a member has."""

    member: str
    until_ms: int
    """Before that its lock doesn't time out."""


class ShareHistory:
    """The history of one share group in one topic."""

    def __init__(self, limit: int, lock_ms: int) -> None:
        """`limit` is `share.delivery.count.limit`.

        No lock times out earlier than `lock_ms` after its record was received.
        """
        self.limit = limit
        self.counts: dict[Record, int] = {}
        """The delivery count that was shown last."""
        self.accepted: set[Record] = set()
        self.unknown: set[Record] = set()
        """Accepted, and the answer was lost."""
        self._lock_ms = lock_ms
        self._held: dict[Record, Held] = {}
        self._is_exact = True

    def on_leader_lost(self) -> None:
        """A leader died. Its successor gives out again what members have."""
        self._is_exact = False
        self._held.clear()

    def on_delivered(self, member: str, record: Record, count: int, now_ms: int) -> None:
        """A member received a record."""
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
        """A member asks to end deliveries, or is about to go: from now on others may get them."""
        for record in records:
            self._held.pop(record, None)

    def on_accepted(self, records: Iterable[Record]) -> None:
        """An acknowledgement was answered with success."""
        self.accepted.update(records)

    def on_lost(self, records: Iterable[Record]) -> None:
        """The answer to an acknowledgement was lost: it may count or not."""
        self.unknown.update(records)

    def lacking(self, good: Iterable[Record]) -> list[Record]:
        """Those of the records that can be processed that no member has accepted yet."""
        return [record for record in good if record not in self.accepted and record not in self.unknown]

    def check_end(self, good: Iterable[Record]) -> None:
        """All members have had time enough."""
        lacking = self.lacking(good)
        if lacking:
            self._fail(
                f"G8: {lacking} could be processed, and were accepted by no member; delivered {[self.counts.get(x) for x in lacking]}"
            )

    @staticmethod
    def _fail(text: str) -> None:
        raise HistoryError(text)
