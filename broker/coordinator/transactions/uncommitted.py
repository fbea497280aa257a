"""Transactional ids with records that aren't committed yet, and what happens when they are.

Guards: nothing is decided on a state that may be lost. Until a record is committed, its id counts as changing; after a
load all ids do, until what was loaded is committed, because the next coordinator may not have all of it.

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
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset

OnError: TypeAlias = Callable[[ErrorCode, Effects], None]
"""Called with the outcome of a request, or of the commit of a record."""


class TransactionChange(msgspec.Struct, frozen=True):
    """A record that was just appended: the whole new state, or None for a tombstone."""

    transactional_id: str
    state: Transaction | None


class UncommittedTransactions:
    """The uncommitted ids of one shard."""

    __slots__ = ("_last_offset", "_names", "is_settling")

    def __init__(self) -> None:
        self.is_settling = False
        """Whether what was loaded isn't committed yet."""
        self._names: set[str] = set()
        self._last_offset: Offset = UNKNOWN_OFFSET
        """The offset of the last record."""

    def note(self, offset: Offset) -> None:
        """Notes that the state depends on the record at `offset`."""
        self._last_offset = max(self._last_offset, offset)

    def on_loaded(self, effects: Effects) -> None:
        """Counts all ids as changing until what was loaded is committed."""
        self.is_settling = True
        self._when_settled(effects, self._on_settled)

    def includes(self, transactional_id: str) -> bool:
        """Returns whether the state of a transactional id may be lost."""
        return self.is_settling or transactional_id in self._names

    def has_record_of(self, transactional_id: str) -> bool:
        """Returns whether a record about a transactional id was appended since the load and isn't committed yet."""
        return transactional_id in self._names

    def append(
        self, name: str, state: Transaction | None, record: CoordinatorRecord, effects: Effects, then: OnError
    ) -> None:
        """Requests the record of a transactional id; None is its tombstone. `then` gets whether it is committed."""
        effects.records.append(record)
        effects.changes.append(TransactionChange(name, state))
        self._names.add(name)

        def on_committed(error: ErrorCode, later: Effects) -> None:
            if error == NONE:
                self._names.discard(name)
                then(error, later)
                return
            if error == ErrorCode.REQUEST_TIMED_OUT:  # It is in the log, and may be committed or lost.
                self._when_settled(later, partial(self._names.discard, name))
            else:
                self._names.discard(name)
            then(append_error(error), later)

        effects.then.append(on_committed)

    def _on_settled(self) -> None:
        self.is_settling = False

    def _when_settled(self, effects: Effects, then: Callable[[], None]) -> None:
        """Continues when all records so far are committed; never after a change of the leader."""

        def on_committed(error: ErrorCode, later: Effects) -> None:
            if error == NONE:
                then()
            elif error != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._when_settled(later, then)  # Other records failed, or the commit took too long.

        effects.barrier = max(effects.barrier, self._last_offset)
        effects.then.append(on_committed)
