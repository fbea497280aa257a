"""Records what clients saw of transactions, and checks that it was allowed.

Checked (letters of the invariants): T1 readers of committed records see nothing of a transaction without a commit
request; T2 a transaction is visible completely or not at all, in all partitions: completely if its commit was
acknowledged, not if it was rejected; visible records stay; T5 a fenced producer changes nothing; T6 a record is there
once, in the order of sending; R2 an offset has one value. `void`: records may have been lost where nothing was
promised, including those of a coordinator, which then repeats itself. After that nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from lowtide.protocol.types import Offset, ProducerEpoch, ProducerId
from lowtide.simulation.history import HistoryError

Identity: TypeAlias = tuple[ProducerId, ProducerEpoch]


class Attempt:
    """One transaction, as its producer sees it."""

    def __init__(self, transactional_id: str, number: int) -> None:
        self.transactional_id = transactional_id
        self.number = number
        self.values: dict[bytes, int] = {}
        """The sent values, with their partitions."""
        self.offsets: dict[bytes, Offset] = {}
        """The acknowledged offsets."""
        self.commits_sent = 0
        self.is_committed = False
        self.is_refused = False
        """Whether its commit was rejected, or its abort acknowledged."""

    def __repr__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}"


class TransactionHistory:
    """The history of all transactions of one topic."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.is_void = False
        self._of: dict[bytes, Attempt] = {}
        self._newest: dict[str, Identity] = {}
        self._values: dict[tuple[int, Offset], bytes] = {}
        self._places: dict[bytes, Offset] = {}
        self._shown: dict[tuple[int, Offset], bytes] = {}

    def void(self) -> None:
        self.is_void = True

    # Producers

    def newest(self, transactional_id: str) -> Identity | None:
        """Returns the newest known producer."""
        return self._newest.get(transactional_id)

    def on_identity(self, transactional_id: str, identity: Identity) -> None:
        """Notes that a producer id and epoch was assigned, perhaps before a known newer one."""
        known = self._newest.get(transactional_id)
        if known is None or known[0] != identity[0] or known[1] < identity[1]:
            self._newest[transactional_id] = identity

    def on_success(self, what: str, transactional_id: str, identity: Identity, newest: Identity | None) -> None:
        """Notes that a producer's request was executed; `newest` was known when it was sent."""
        if newest is not None and newest[0] == identity[0] and identity[1] < newest[1]:
            self._fail(
                f"T5: {what} of {transactional_id} succeeds for producer {identity}, and {newest} had followed it"
            )

    def begin(self, transactional_id: str) -> Attempt:
        """Starts a transaction, without a request yet."""
        attempt = Attempt(transactional_id, len(self.attempts))
        self.attempts.append(attempt)
        return attempt

    def new_values(self, attempt: Attempt, partition: int, count: int, padding: bytes) -> list[bytes]:
        """Returns new unique records."""
        first = len(attempt.values)
        values = [b"%d %d %s" % (attempt.number, first + index, padding) for index in range(count)]
        for value in values:
            attempt.values[value] = partition
            self._of[value] = attempt
        return values

    def on_acknowledged(self, attempt: Attempt, base_offset: Offset, values: list[bytes]) -> None:
        if base_offset < 0:
            return
        for offset, value in enumerate(values, base_offset):
            attempt.offsets[value] = offset
            self._place(attempt.values[value], offset, value)

    # Readers

    def on_read(self, partition: int, records: Mapping[Offset, bytes], *, is_committed: bool) -> None:
        """Checks records read; `is_committed`: with read_committed."""
        for offset, value in records.items():
            attempt = self._of.get(value)
            if attempt is None:
                self._fail(f"R4: offset {offset} of partition {partition} holds {value[:40]!r}, which no client sent")
                return
            self._place(partition, offset, value)
            if is_committed:
                if not attempt.commits_sent:
                    self._fail(
                        f"T1: offset {offset} of partition {partition} is shown as committed, of {attempt}, which no "
                        "client committed"
                    )
                self._shown[partition, offset] = value

    def check_end(self, found: Mapping[int, tuple[Offset, Mapping[Offset, bytes]]]) -> None:
        """Checks the final content of all partitions: log start offset, and records."""
        shown = {
            (partition, offset): value for partition, (_, records) in found.items() for offset, value in records.items()
        }
        starts = {partition: start for partition, (start, _) in found.items()}
        for (partition, offset), value in self._shown.items():
            if offset >= starts[partition] and shown.get((partition, offset)) != value:
                self._fail(
                    f"T2: {value[:40]!r} was shown at offset {offset} of partition {partition}, and isn't any more"
                )
        self._check_order(shown)
        there = set(shown.values())
        for attempt in self.attempts:
            self._check_attempt(attempt, there, starts)

    def _check_attempt(self, attempt: Attempt, there: set[bytes], starts: Mapping[int, Offset]) -> None:
        deleted = {value for value, offset in attempt.offsets.items() if offset < starts[attempt.values[value]]}
        present = [value for value in attempt.values if value in there]
        missing = [value for value in attempt.values if value not in there and value not in deleted]
        if present and (not attempt.commits_sent or attempt.is_refused):
            self._fail(f"T2: {attempt} isn't committed, and {present[0][:40]!r} of it is shown")
        if missing and (attempt.is_committed or present):
            state = "was committed with an acknowledgement" if attempt.is_committed else f"shows {present[0][:40]!r}"
            self._fail(
                f"T2: {attempt} {state}, and {missing[0][:40]!r} of partition {attempt.values[missing[0]]} is missing"
            )

    def _check_order(self, shown: Mapping[tuple[int, Offset], bytes]) -> None:
        last: dict[tuple[int, str], tuple[int, int]] = {}
        for partition, offset in sorted(shown):
            value = shown[partition, offset]
            attempt = self._of[value]
            place = (attempt.number, int(value.split()[1]))
            before = last.get((partition, attempt.transactional_id), (-1, -1))
            if place <= before:
                self._fail(f"T6: {value[:40]!r} stands at offset {offset} of partition {partition}, behind {before}")
            last[partition, attempt.transactional_id] = place

    def _place(self, partition: int, offset: Offset, value: bytes) -> None:
        known = self._values.setdefault((partition, offset), value)
        if known != value:
            self._fail(f"R2: offset {offset} of partition {partition} held {known[:40]!r} and now {value[:40]!r}")
        place = self._places.setdefault(value, offset)
        if place != offset:
            self._fail(f"T6: {value[:40]!r} stands at {place} and at {offset} of partition {partition}")

    def _fail(self, reason: str) -> None:
        if self.is_void:
            return
        raise HistoryError(f"transactions: {reason}")
