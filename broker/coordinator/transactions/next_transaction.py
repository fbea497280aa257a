"""The next state of a transactional id, for a producer that starts and for an end that is requested.

Functions of values. `take` returns an unused producer id, or None if none is available. A returned state is new and has
to be recorded.

Guards: a producer with a successor gets no epoch and ends nothing; a decided end is not decided again; while a change
is incomplete every request is retried, before the requester is checked, because the producer may already have its next
epoch or id.

Source: Kafka's `TransactionCoordinator.prepareInitProducerIdTransit`, `endTransaction`, `TransactionMetadata`; KIP-360,
KIP-588, KIP-890.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE, EPOCH_MAX, Transaction
from lowtide.broker.coordinator.transactions.transaction_state import (
    ENDING,
    TransactionEvent,
    TransactionState,
    next_state,
)
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)

Identity: TypeAlias = tuple[ProducerId, ProducerEpoch]

NO_IDENTITY: Final[Identity] = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)

Take: TypeAlias = Callable[[], ProducerId | None]

_COMPLETED: Final = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


def next_producer(  # noqa: PLR0911 - one return for each answer
    known: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    expected: Identity | None,
    take: Take,
) -> Transaction | ErrorCode:
    """Returns the state with the producer's next epoch, or that of the open transaction, which has to be ended first.

    Errors: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, COORDINATOR_LOAD_IN_PROGRESS if no producer id is available.
    """
    if known is None:
        producer_id = take()
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return Transaction(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=0, timeout_ms=timeout_ms
        )
    if known.state in ENDING:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and expected[0] != known.producer_id:
        is_retry = expected[0] == known.previous_producer_id and expected[1] >= EPOCH_MAX - 1
        if not is_retry:
            return ErrorCode.PRODUCER_FENCED
    if known.state is TransactionState.ONGOING:
        # Unlike in Kafka, a fenced producer does not end another producer's transaction.
        is_fenced = expected is not None and expected[1] not in (known.producer_epoch, known.last_producer_epoch)
        return ErrorCode.PRODUCER_FENCED if is_fenced else known
    fields: dict[str, Any] = {
        "timeout_ms": timeout_ms,
        "state": next_state(known.state, TransactionEvent.INIT),
        "partitions": frozenset(),
    }
    fields |= {"started_ms": NO_TIMESTAMP, "client_version": 0, "next_producer_id": NO_PRODUCER_ID}
    if known.is_exhausted and (expected is None or expected[1] == known.producer_epoch):
        producer_id = take()
        if producer_id is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        last_epoch = known.producer_epoch if expected is not None else NO_PRODUCER_EPOCH
        fields |= {"producer_id": producer_id, "previous_producer_id": known.producer_id, "producer_epoch": 0}
    elif expected is None:
        last_epoch = NO_PRODUCER_EPOCH
        fields["producer_epoch"] = known.producer_epoch + 1
    elif expected[1] == known.producer_epoch:
        last_epoch = known.producer_epoch
        fields["producer_epoch"] = known.producer_epoch + 1
    elif expected[1] == known.last_producer_epoch:
        last_epoch = known.last_producer_epoch
    else:
        return ErrorCode.PRODUCER_FENCED
    return msgspec.structs.replace(known, last_producer_epoch=last_epoch, **fields)


def next_partitions(
    known: Transaction, added: frozenset[TopicPartition], client_version: int, wall_ms: int
) -> Transaction | ErrorCode:
    """Returns the state with added partitions, which may begin a transaction; NONE if it has the partitions."""
    begins = known.state is not TransactionState.ONGOING
    if not begins and added <= known.partitions:
        return NONE
    return msgspec.structs.replace(
        known,
        state=next_state(known.state, TransactionEvent.ADD),
        partitions=known.partitions | added,
        started_ms=wall_ms if begins else known.started_ms,
        client_version=client_version,
    )


class EndRequest(NamedTuple):
    """An end that a producer requests; `client_version` is the version of transactions that it supports."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    is_commit: bool
    client_version: int


def next_end(  # noqa: PLR0911 - one return for each answer
    known: Transaction | None, asked: EndRequest, take: Take, *, is_changing: bool
) -> Transaction | ErrorCode:
    """Returns the state after an end, or NONE if the end was reached before.

    Errors: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE,
    COORDINATOR_LOAD_IN_PROGRESS.
    """
    producer_id, producer_epoch, is_commit, client_version = asked
    if known is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    bumps = client_version >= EPOCH_BUMPS_SINCE
    if bumps and is_changing:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    was_rotated = (
        bumps
        and known.bumps_epochs
        and known.producer_epoch == 0
        and (producer_id, producer_epoch) == (known.previous_producer_id, EPOCH_MAX - 1)
    )
    is_bumped = bumps and known.was_bumped_from(producer_epoch)
    is_retry = known.state is not TransactionState.ONGOING and (is_bumped or was_rotated)
    if known.producer_id != producer_id and not was_rotated:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != producer_epoch and not is_retry:
        return ErrorCode.PRODUCER_FENCED
    if is_changing:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.state is TransactionState.ONGOING:
        return ended(known, take, is_commit=is_commit, client_version=client_version)
    if known.state is _COMPLETED[is_commit] and (is_retry or not bumps):
        return NONE
    if bumps and not is_commit and not is_retry:
        # No transaction is known, but writes of one may be under way. The next epoch fences them.
        return ended(known, take, is_commit=False, client_version=client_version)
    return ErrorCode.INVALID_TXN_STATE


def ended(known: Transaction, take: Take, *, is_commit: bool, client_version: int) -> Transaction | ErrorCode:
    """Returns the state of a transaction that ends now.

    Errors: COORDINATOR_LOAD_IN_PROGRESS if it needs a producer id and none is available.
    """
    state = msgspec.structs.replace(
        known,
        state=next_state(known.state, TransactionEvent.COMMIT if is_commit else TransactionEvent.ABORT),
        client_version=client_version,
        partitions=known.partitions if known.state is TransactionState.ONGOING else frozenset(),
    )
    if client_version >= EPOCH_BUMPS_SINCE:
        if known.is_exhausted:
            producer_id = take()
            if producer_id is None:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            state.next_producer_id = producer_id
        state.producer_epoch, state.last_producer_epoch = min(known.producer_epoch + 1, EPOCH_MAX), known.producer_epoch
    return state


def completed(known: Transaction) -> Transaction:
    """Returns the state after all markers of an end, with the producer's next id if the end reserved one."""
    state = msgspec.structs.replace(
        known, state=next_state(known.state, TransactionEvent.ALL_MARKED), partitions=frozenset()
    )
    if known.next_producer_id != NO_PRODUCER_ID:
        state.previous_producer_id, state.producer_id = known.producer_id, known.next_producer_id
        state.next_producer_id, state.producer_epoch = NO_PRODUCER_ID, 0
    return state


def identity_of(state: Transaction) -> Identity:
    """Returns the next id and epoch of the producer whose transaction ends."""
    if state.next_producer_id != NO_PRODUCER_ID:
        return state.next_producer_id, 0
    return state.producer_id, state.producer_epoch


def identity_after(known: Transaction | None, error: ErrorCode) -> Identity:
    """Returns the id and epoch for the answer to an end that is not begun.

    These are the producer's own if the end was reached before.
    """
    if known is None or error != NONE:
        return NO_IDENTITY
    return known.producer_id, known.producer_epoch
