"""Transactional ids about which a record isn't committed yet, and what goes on when it is.

Guards: nothing is decided on what may be lost: until a record is committed, its id counts as changing; after a load all
ids do, until what was loaded is committed, because another coordinator may come that doesn't have all of it.

Source: Kafka's `TransactionMetadata.pendingState`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec

from lowtide.broker.coordinator.runtime.effects import Effects, append_error
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.protocol.coordinator_records import CoordinatorRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset

OnError: TypeAlias = Callable[[ErrorCode, Effects], None]
"""Gets the outcome of a request, or whether a record is committed."""


class TransactionChange(msgspec.Struct, frozen=True):
    """A record that was just appended: the state that it says, with what it doesn't; None for one that takes it back."""

    transactional_id: str
    state: Transaction | None


class UncommittedTransactions:
    """Of one coordinator's partition."""

    __slots__ = ("_last_offset", "_names", "is_settling")

    def __init__(self) -> None:
        self.is_settling = False
        """Whether what was loaded isn't committed yet."""
        self._names: set[str] = set()
        self._last_offset: Offset = UNKNOWN_OFFSET
        """Of the last record that the state follows from."""

    def note(self, offset: Offset) -> None:
        """The state follows from the record at `offset`."""
        self._last_offset = max(self._last_offset, offset)

    def on_loaded(self, effects: Effects) -> None:
        """All records of the log are applied."""
        self.is_settling = True
        self._when_settled(effects, self._on_settled)

    def includes(self, transactional_id: str) -> bool:
        """Whether what is known of a transactional id may be lost."""
        return self.is_settling or transactional_id in self._names

    def has_record_of(self, transactional_id: str) -> bool:
        """Whether a record about a transactional id was appended since the load, and isn't committed yet."""
        return transactional_id in self._names

    def append(
        self, name: str, state: Transaction | None, record: CoordinatorRecord, effects: Effects, then: OnError
    ) -> None:
        """Ask for the record of a transactional id, without a state for that which takes it back; `then` gets whether it is committed."""
        effects.records.append(record)
        effects.changes.append(TransactionChange(name, state))
        self._names.add(name)

        def go_on(error: ErrorCode, later: Effects) -> None:
            if error == ErrorCode.REQUEST_TIMED_OUT:  # It is in the log, and may be committed or lost.
                self._when_settled(later, partial(self._names.discard, name))
            else:
                self._names.discard(name)
            then(append_error(error), later)

        effects.then.append(go_on)

    def _on_settled(self) -> None:
        self.is_settling = False

    def _when_settled(self, effects: Effects, then: Callable[[], None]) -> None:
        """Go on when all records so far are committed, however long that takes; never, when another coordinator follows."""

        def go_on(error: ErrorCode, later: Effects) -> None:
            if error == ErrorCode.NONE:
                then()
            elif error != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._when_settled(later, then)  # Of its own: what it came with could not be kept, or took too long.

        effects.barrier = max(effects.barrier, self._last_offset)
        effects.then.append(go_on)
