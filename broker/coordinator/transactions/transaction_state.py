"""The states of a transactional id, and its transitions.

    EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT          ── INIT ──>       EMPTY
    EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, ONGOING ── ADD ──>        ONGOING
    ONGOING                                         ── COMMIT ──>     PREPARE_COMMIT
    EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT, ONGOING ── ABORT ──>      PREPARE_ABORT
    PREPARE_COMMIT                                  ── SEND_AGAIN ──> PREPARE_COMMIT
    PREPARE_ABORT                                   ── SEND_AGAIN ──> PREPARE_ABORT
    PREPARE_COMMIT                                  ── ALL_MARKED ──> COMPLETE_COMMIT
    PREPARE_ABORT                                   ── ALL_MARKED ──> COMPLETE_ABORT
    EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT          ── EXPIRE ──>     DEAD

An id begins in EMPTY, with its first producer. Every other pair is a bug and raises before a record is appended.

Source: Kafka's `TransactionState`; KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final


class TransactionState(IntEnum):
    """The state of a transactional id, with the numbers of Kafka's records."""

    EMPTY = 0
    """It has a producer without a transaction. action: partitions begin a transaction.
    transition: the next producer comes (INIT) → EMPTY; partitions are added (ADD) → ONGOING; a producer of KIP-890
    aborts, for its next epoch (ABORT) → PREPARE_ABORT; unused for too long (EXPIRE) → DEAD."""
    ONGOING = 1
    """Its transaction is open. action: partitions are added. transition: more partitions (ADD) → ONGOING; EndTxn
    (COMMIT) → PREPARE_COMMIT; EndTxn, too old, or another producer comes, with a higher epoch (ABORT) →
    PREPARE_ABORT."""
    PREPARE_COMMIT = 2
    """It is committed, and markers are sent to its partitions. action: CONCURRENT_TRANSACTIONS.
    transition: a coordinator that takes over, or a retry, records it again (SEND_AGAIN) → PREPARE_COMMIT; each
    partition has its marker (ALL_MARKED) → COMPLETE_COMMIT."""
    PREPARE_ABORT = 3
    """It is aborted, and markers are sent to its partitions. action: CONCURRENT_TRANSACTIONS.
    transition: a coordinator that takes over, or a retry, records it again (SEND_AGAIN) → PREPARE_ABORT; each partition
    has its marker (ALL_MARKED) → COMPLETE_ABORT."""
    COMPLETE_COMMIT = 4
    """action: as in EMPTY, and the same end may be repeated. transition: INIT → EMPTY; ADD → ONGOING; ABORT →
    PREPARE_ABORT; EXPIRE → DEAD."""
    COMPLETE_ABORT = 5
    """action: as in EMPTY, and the same end may be repeated. transition: INIT → EMPTY; ADD → ONGOING; ABORT →
    PREPARE_ABORT; EXPIRE → DEAD."""
    DEAD = 6
    """action: none; the id is forgotten. transition: none."""


class TransactionEvent(Enum):
    """What changes the state of a transactional id."""

    __hash__ = object.__hash__
    """The hash of Enum is a Python function."""

    INIT = "a producer gets its id and epoch"
    ADD = "partitions are added"
    COMMIT = "the transaction ends, committed"
    ABORT = "the transaction ends, aborted"
    SEND_AGAIN = "an end is recorded again, to send its markers"
    ALL_MARKED = "each partition has its marker"
    EXPIRE = "the id was unused for too long"


IDLE: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""No transaction is open or ending."""

TRANSITIONS: Final[Mapping[tuple[TransactionState, TransactionEvent], TransactionState]] = {
    **{(state, TransactionEvent.INIT): TransactionState.EMPTY for state in IDLE},
    **{(state, TransactionEvent.ADD): TransactionState.ONGOING for state in IDLE},
    **{(state, TransactionEvent.ABORT): TransactionState.PREPARE_ABORT for state in IDLE},
    **{(state, TransactionEvent.EXPIRE): TransactionState.DEAD for state in IDLE},
    (TransactionState.ONGOING, TransactionEvent.ADD): TransactionState.ONGOING,
    (TransactionState.ONGOING, TransactionEvent.COMMIT): TransactionState.PREPARE_COMMIT,
    (TransactionState.ONGOING, TransactionEvent.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.PREPARE_COMMIT, TransactionEvent.SEND_AGAIN): TransactionState.PREPARE_COMMIT,
    (TransactionState.PREPARE_COMMIT, TransactionEvent.ALL_MARKED): TransactionState.COMPLETE_COMMIT,
    (TransactionState.PREPARE_ABORT, TransactionEvent.SEND_AGAIN): TransactionState.PREPARE_ABORT,
    (TransactionState.PREPARE_ABORT, TransactionEvent.ALL_MARKED): TransactionState.COMPLETE_ABORT,
}

STATE_NAMES: Final[Mapping[TransactionState, str]] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
    TransactionState.DEAD: "Dead",
}
"""The names in answers to clients."""

ENDING: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})

FOLLOWS: Final = frozenset((before, after) for (before, _), after in TRANSITIONS.items())
"""The pairs of states of which any event leads from the first to the second."""


def next_state(state: TransactionState, event: TransactionEvent) -> TransactionState:
    """Returns the next state. Raises AssertionError if the event can't happen in the state."""
    following = TRANSITIONS.get((state, event))
    assert following is not None, f"{event.name} can't happen to a transactional id in {state.name}"
    return following
