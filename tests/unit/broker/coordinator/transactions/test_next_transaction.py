"""Which epoch a producer gets, whom it fences, and what an end leads to: each rule by itself (KIP-360, KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.transactions.next_transaction import (
    EndRequest,
    completed,
    ended,
    identity_after,
    identity_of,
    next_end,
    next_producer,
)
from lowtide.broker.coordinator.transactions.transaction import EPOCH_MAX, Transaction, from_value
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.transaction_records import decode_transaction, encode_transaction
from lowtide.protocol.types import TopicPartition

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
COMMITTED, ABORTED = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
PARTITION = TopicPartition("t", 0)
FENCED, NONE = ErrorCode.PRODUCER_FENCED, ErrorCode.NONE
LAST = EPOCH_MAX - 1
"""The last epoch that a producer gets."""
NEXT_ID = 900


def known(state: TransactionState = EMPTY, epoch: int = 5, **more: Any) -> Transaction:
    """Of producer 7, which had producer 6 before it."""
    values: dict[str, Any] = {"producer_id": 7, "previous_producer_id": 6, "last_producer_epoch": epoch - 1}
    values |= {"timeout_ms": 1000, "client_version": 2}
    if state is ONGOING:
        values |= {"partitions": frozenset({PARTITION}), "started_ms": 50}
    return Transaction(transactional_id="x", producer_epoch=epoch, state=state, **(values | more))


def take() -> int | None:
    return NEXT_ID


def none_left() -> int | None:
    return None


def identity(answer: Transaction | ErrorCode) -> Any:
    return (answer.producer_id, answer.producer_epoch) if isinstance(answer, Transaction) else answer


# A producer that starts, or continues


def test_a_new_id_begins_with_epoch_zero() -> None:
    answer = next_producer(None, "x", 2000, None, take)
    assert answer == Transaction(transactional_id="x", producer_id=NEXT_ID, producer_epoch=0, timeout_ms=2000)
    assert next_producer(None, "x", 2000, None, none_left) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("state", [EMPTY, COMMITTED, ABORTED])
@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        (None, (7, 6)),
        ((7, 5), (7, 6)),
        ((7, 4), (7, 5)),  # It missed the answer with its present epoch.
        ((7, 3), FENCED),
        ((7, 6), FENCED),
        ((8, 5), FENCED),
        ((6, 5), FENCED),
    ],
)
def test_the_next_epoch_of_a_producer(state: TransactionState, expected: tuple[int, int] | None, wanted: Any) -> None:
    assert identity(next_producer(known(state), "x", 1000, expected, take)) == wanted


def test_a_producer_begins_with_nothing_of_the_transaction_before() -> None:
    before = known(COMMITTED, started_ms=50, next_producer_id=8, partitions=frozenset({PARTITION}))
    after = next_producer(before, "x", 2000, (7, 5), take)
    assert isinstance(after, Transaction)
    assert after == known(EMPTY, 6, timeout_ms=2000, client_version=0, last_producer_epoch=5)
    alone = next_producer(before, "x", 2000, None, take)
    assert isinstance(alone, Transaction)
    assert alone.last_producer_epoch == -1, "who starts has no epoch before"
    again = next_producer(before, "x", 2000, (7, 4), take)
    assert isinstance(again, Transaction)
    assert again.last_producer_epoch == 4


def test_a_producer_without_epochs_left_gets_another_id() -> None:
    full = known(EMPTY, LAST)
    for expected in (None, (7, LAST)):
        after = next_producer(full, "x", 1000, expected, take)
        assert isinstance(after, Transaction)
        assert (after.producer_id, after.producer_epoch, after.previous_producer_id) == (NEXT_ID, 0, 7)
        assert after.last_producer_epoch == (LAST if expected else -1)
        assert next_producer(full, "x", 1000, expected, none_left) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert identity(next_producer(full, "x", 1000, (7, LAST - 1), none_left)) == (7, LAST), (
        "it missed the answer: no id is needed"
    )
    assert identity(next_producer(known(EMPTY, LAST - 1), "x", 1000, None, none_left)) == (7, LAST)


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [((6, LAST), (7, 0)), ((6, EPOCH_MAX), FENCED), ((6, LAST - 1), FENCED), ((5, LAST), FENCED)],
)
def test_a_producer_that_missed_its_next_id_is_known_by_the_last_epoch(expected: tuple[int, int], wanted: Any) -> None:
    rotated = known(EMPTY, 0, last_producer_epoch=LAST)
    assert identity(next_producer(rotated, "x", 1000, expected, take)) == wanted


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [(None, (7, 5)), ((7, 5), (7, 5)), ((7, 4), (7, 5)), ((7, 3), FENCED), ((7, 6), FENCED), ((8, 5), FENCED)],
)
def test_an_open_transaction_has_to_be_ended_first(expected: tuple[int, int] | None, wanted: Any) -> None:
    before = known(ONGOING)
    answer = next_producer(before, "x", 1000, expected, take)
    assert identity(answer) == wanted
    assert answer is before or answer == FENCED


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_nobody_starts_while_an_end_is_written(state: TransactionState) -> None:
    assert next_producer(known(state), "x", 1000, (99, 0), take) == ErrorCode.CONCURRENT_TRANSACTIONS


# Ends


def end(
    state: Transaction | None,
    identity: tuple[int, int],
    *,
    commit: bool = True,
    version: int = 2,
    changing: bool = False,
) -> Any:
    answer = next_end(state, EndRequest(*identity, commit, version), take, is_changing=changing)
    return (answer.state, answer.producer_epoch) if isinstance(answer, Transaction) else answer


def test_an_end_of_who_is_not_known() -> None:
    assert end(None, (7, 5)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(ONGOING), (8, 5)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(ONGOING), (7, 4)) == FENCED
    assert end(known(ONGOING), (7, 6)) == FENCED


def test_while_a_change_is_not_complete_clients_with_an_epoch_for_each_transaction_retry_whoever_they_are() -> None:
    """Such a producer may have its next epoch or id already. Another one is checked first."""
    assert end(known(ONGOING), (8, 5), changing=True) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert end(known(ONGOING), (8, 5), changing=True, version=0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(ONGOING), (7, 4), changing=True, version=0) == FENCED
    assert end(known(ONGOING), (7, 5), changing=True, version=0) == ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_open_transaction_ends_and_its_epoch_grows_from_version_two_on(version: int) -> None:
    epoch = 6 if version == 2 else 5
    assert end(known(ONGOING), (7, 5), version=version) == (TransactionState.PREPARE_COMMIT, epoch)
    assert end(known(ONGOING), (7, 5), commit=False, version=version) == (TransactionState.PREPARE_ABORT, epoch)


def test_an_end_is_answered_again() -> None:
    """By the epoch before where each transaction has its own."""
    assert end(known(COMMITTED), (7, 4)) == NONE
    assert end(known(COMMITTED), (7, 4), commit=False) == ErrorCode.INVALID_TXN_STATE, "it was committed"
    assert end(known(COMMITTED), (7, 5)) == ErrorCode.INVALID_TXN_STATE, "nothing has begun in that epoch"
    assert end(known(COMMITTED, client_version=0), (7, 5), version=0) == NONE
    assert end(known(COMMITTED, client_version=0), (7, 4), version=0) == FENCED


ROTATED = {"epoch": 0, "last_producer_epoch": LAST}


def test_an_end_with_the_last_epoch_is_answered_again_after_the_id_has_changed() -> None:
    assert end(known(COMMITTED, **ROTATED), (6, LAST)) == NONE
    assert end(known(COMMITTED, **ROTATED), (6, LAST - 1)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(COMMITTED, **ROTATED), (5, LAST)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(COMMITTED, **ROTATED), (6, LAST), version=0) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(COMMITTED, epoch=1), (6, LAST)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING, "it has gone on since"
    assert end(known(COMMITTED, client_version=1, **ROTATED), (6, LAST)) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(known(ONGOING, **ROTATED), (6, LAST)) == FENCED, "the next transaction is open: that isn't its end"


def test_an_abort_of_nothing_takes_the_next_epoch() -> None:
    """Something may be on its way of which nothing is known."""
    answer = next_end(known(EMPTY), EndRequest(7, 5, False, 2), take, is_changing=False)
    assert isinstance(answer, Transaction)
    assert (answer.state, answer.producer_epoch, answer.partitions) == (TransactionState.PREPARE_ABORT, 6, frozenset())
    assert end(known(EMPTY), (7, 5)) == ErrorCode.INVALID_TXN_STATE
    assert end(known(EMPTY, client_version=0), (7, 5), commit=False, version=0) == ErrorCode.INVALID_TXN_STATE


def test_an_end_with_the_last_epoch_takes_another_id_which_counts_when_it_is_complete() -> None:
    open_one = known(ONGOING, LAST)
    after = ended(open_one, take, is_commit=True, client_version=2)
    assert isinstance(after, Transaction)
    assert (after.producer_id, after.producer_epoch, after.last_producer_epoch, after.next_producer_id) == (
        7,
        EPOCH_MAX,
        LAST,
        NEXT_ID,
    )
    assert after.partitions == open_one.partitions
    assert identity_of(after) == (NEXT_ID, 0)
    done = completed(after)
    assert (done.state, done.partitions) == (COMMITTED, frozenset())
    assert (done.producer_id, done.producer_epoch, done.previous_producer_id, done.next_producer_id) == (
        NEXT_ID,
        0,
        7,
        -1,
    )
    assert identity_of(done) == (NEXT_ID, 0)
    assert ended(open_one, none_left, is_commit=True, client_version=2) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    before = ended(known(ONGOING, LAST - 1), none_left, is_commit=False, client_version=2)
    assert isinstance(before, Transaction)
    assert (before.producer_epoch, before.next_producer_id) == (LAST, -1)
    assert identity_of(before) == (7, LAST)
    old_client = ended(open_one, none_left, is_commit=True, client_version=1)
    assert isinstance(old_client, Transaction)
    assert old_client.producer_epoch == LAST


def reloaded(state: Transaction) -> Transaction:
    """What another coordinator knows, which has loaded the record."""
    record = decode_transaction(*state.as_record())
    assert record is not None
    assert record.value is not None
    return from_value("x", record.value)


@pytest.mark.parametrize("epoch", [0, 5, LAST - 1, LAST])
@pytest.mark.parametrize("state", [EMPTY, COMMITTED, ABORTED])
def test_a_producer_whose_answer_was_lost_with_the_coordinator_asks_again(state: TransactionState, epoch: int) -> None:
    """It gets what it got, and not PRODUCER_FENCED (KAFKA-20310, KAFKA-20357)."""
    after = next_producer(known(state, epoch), "x", 1000, (7, epoch), take)
    assert isinstance(after, Transaction)
    again = next_producer(reloaded(after), "x", 1000, (7, epoch), none_left)
    assert identity(again) == identity(after)
    assert identity(next_producer(reloaded(after), "x", 1000, (7, epoch - 1), none_left)) == FENCED


@pytest.mark.parametrize("epoch", [5, LAST])
def test_a_producer_whose_transaction_took_too_long_asks_for_its_epoch_after_a_crash(epoch: int) -> None:
    """It may have the epoch in which its transaction was aborted, until another producer comes (KIP-588)."""
    aborted = ended(known(ONGOING, epoch), take, is_commit=False, client_version=2)
    assert isinstance(aborted, Transaction)
    after = completed(reloaded(aborted))
    assert identity(next_producer(reloaded(after), "x", 1000, (7, epoch), take)) == identity(
        next_producer(after, "x", 1000, (7, epoch), take)
    )
    assert identity(after) == ((7, 6) if epoch == 5 else (NEXT_ID, 0))
    other = next_producer(after, "x", 1000, None, take)
    assert isinstance(other, Transaction)
    assert next_producer(reloaded(other), "x", 1000, (7, epoch), take) == FENCED


def test_the_identity_after_an_end_that_is_not_begun() -> None:
    assert identity_after(known(), NONE) == (7, 5)
    assert identity_after(known(), FENCED) == (-1, -1)
    assert identity_after(None, NONE) == (-1, -1)
    assert identity_after(None, FENCED) == (-1, -1)


# Records


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"previous_producer_id": -1},
        {"previous_producer_id": -1, "next_producer_id": 8},
        {"next_producer_id": 8},
        {"last_producer_epoch": -1},
        {"last_producer_epoch": -1, "previous_producer_id": -1},
        {"last_producer_epoch": 0, "previous_producer_id": -1, "client_version": 0},
    ],
)
def test_a_state_comes_back_from_its_record(changed: dict[str, int]) -> None:
    """The short form of a record has the same bytes as the other."""
    partitions = frozenset({PARTITION, TopicPartition("t", 9), TopicPartition("u", 1)})
    state = known(ONGOING, partitions=partitions, updated_ms=60, **changed)
    value = state.as_value()
    assert from_value("x", value) == state
    assert state.as_record() == encode_transaction("x", value)
    topics = {topic.topic: list(topic.partition_ids) for topic in value.transaction_partitions or ()}
    assert topics == {"t": [0, 9], "u": [1]}
    assert known(EMPTY).as_value().transaction_partitions is None
