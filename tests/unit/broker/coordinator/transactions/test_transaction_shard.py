"""The transactions of one partition: records, answers while a change is incomplete, and deadlines."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.transactions.transaction import EPOCH_MAX, Transaction
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.broker.coordinator.transactions.transaction_shard import RETRY_MS, Transactions
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.coordinator.transactions.uncommitted import TransactionChange
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.transaction_records import TransactionLogValue, TransactionRecord
from lowtide.protocol.types import TopicPartition

from .transaction_world import NAME, NONE, PARTITIONS, TIMEOUT_MS, World, start

SETTINGS = TransactionSettings()
EXPIRY: Any = ("expiry", "")
CONCURRENT, UNAVAILABLE = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE


def known(state: TransactionState = TransactionState.ONGOING, **fields: Any) -> Transaction:
    given: dict[str, Any] = {"partitions": frozenset(PARTITIONS[:1]), "started_ms": 1_000_000} | fields
    return Transaction(
        transactional_id=NAME, producer_id=7, producer_epoch=3, timeout_ms=TIMEOUT_MS, state=state, **given
    )


def recorded(state: int, number: int = 7) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=number,
        producer_epoch=3,
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_status=state,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=1,
        transaction_start_timestamp_ms=1,
    )


def loading() -> Transactions:
    return Transactions(SETTINGS, World())


def loaded(state: Transactions) -> Effects:
    effects = Effects(0, 0)
    state.on_loaded(effects)
    return effects


def add(world: World, identity: tuple[int, int], *partitions: TopicPartition) -> ErrorCode:
    told: list[ErrorCode] = []
    world.decide(
        lambda effects: world.state.add_partitions(
            NAME, identity, partitions, 0, effects, lambda error, _: told.append(error)
        )
    )
    return told[0]


def added(state: Transactions, partitions: list[TopicPartition]) -> list[ErrorCode]:
    """The answer to an addition; none while its record isn't committed."""
    told: list[ErrorCode] = []
    state.add_partitions(NAME, (7, 3), partitions, 0, Effects(0, 0), lambda error, _: told.append(error))
    return told


def ended(state: Transactions, name: str = NAME) -> list[ErrorCode]:
    told: list[ErrorCode] = []
    state.end(
        name, (7, 3), is_commit=True, client_version=0, effects=Effects(0, 0), done=lambda error, *_: told.append(error)
    )
    return told


def completed(state: Transactions, identity: tuple[int, int]) -> list[TransactionState]:
    """The states that are recorded when all partitions have the marker of an end."""
    effects = Effects(0, 0)
    state.on_all_marked(NAME, identity, effects)
    return [change.state.state for change in effects.changes]


# ---------------------------------------------------------------------- what the log says
def test_the_last_record_of_an_id_counts_and_a_tombstone_forgets_it() -> None:
    state = loading()
    state.apply(TransactionRecord("a", recorded(0)), 0)
    state.apply(TransactionRecord("b", recorded(0)), 1)
    state.apply(TransactionRecord("a", recorded(1, 9)), 2)
    assert {name: (each.producer_id, each.state) for name, each in state.transactions.items()} == {
        "a": (9, TransactionState.ONGOING),
        "b": (7, TransactionState.EMPTY),
    }
    state.apply(TransactionRecord("b", None), 3)
    state.apply(TransactionRecord("unknown", None), 4)
    assert (state.count, loaded(state).barrier) == (1, 4)


def test_a_marker_says_nothing_and_has_to_be_committed_like_a_record() -> None:
    state = loading()
    state.apply(EndMarker(7, is_commit=True), 5)
    assert (state.count, loaded(state).barrier) == (0, 5)


def test_what_is_never_written_is_an_error() -> None:
    state = loading()
    with pytest.raises(ProtocolError):
        state.apply(InTransaction(7, TransactionRecord(NAME, recorded(0))), 0)
    with pytest.raises(ProtocolError):
        state.apply(TransactionRecord(NAME, recorded(77)), 1)
    assert not state.transactions


def test_what_was_appended_has_to_be_committed_before_the_state_is_relied_upon() -> None:
    state = loading()
    state.note(TransactionChange(NAME, known()), 12)
    assert state.transactions[NAME] == known()
    assert loaded(state).barrier == 12


def test_a_record_says_when_it_was_made() -> None:
    world = World()
    start(world)
    assert world.state.transactions[NAME].updated_ms == world.now_ms


# ---------------------------------------------------------------------- after a load
def test_nothing_is_decided_on_what_was_loaded_before_it_is_committed() -> None:
    state = loading()
    state.note(TransactionChange(NAME, known()), 0)
    waits = loaded(state)
    assert state.verify(NAME, 7, 3, PARTITIONS[0]) == CONCURRENT
    assert added(state, PARTITIONS) == [CONCURRENT]
    assert ended(state) == [CONCURRENT]
    (settled,) = waits.then
    settled(NONE, Effects(0, 0))
    assert state.verify(NAME, 7, 3, PARTITIONS[0]) == NONE
    assert ended(state) == [], "its record has to be committed"


def test_ids_expire_first_an_interval_after_the_load_and_then_in_intervals() -> None:
    state = loading()
    effects = Effects(50, 0)
    state.on_loaded(effects)
    assert state.timers.deadline_of(EXPIRY) == 50 + SETTINGS.expiry_check_interval_ms
    state.timers.cancel(EXPIRY)
    state.on_timer(EXPIRY, Effects(70, 0))
    assert state.timers.deadline_of(EXPIRY) == 70 + SETTINGS.expiry_check_interval_ms


# ---------------------------------------------------------------------- producers
@pytest.mark.parametrize(
    ("timeout_ms", "is_valid"),
    [(-1, False), (0, False), (1, True), (SETTINGS.timeout_max_ms, True), (SETTINGS.timeout_max_ms + 1, False)],
)
def test_a_timeout_is_above_zero_and_at_most_the_maximum(timeout_ms: int, *, is_valid: bool) -> None:
    world = World()
    told: list[ErrorCode] = []
    world.decide(
        lambda effects: world.state.init_producer_id(
            NAME, timeout_ms, None, effects, lambda error, *_: told.append(error)
        )
    )
    assert told == [NONE if is_valid else ErrorCode.INVALID_TRANSACTION_TIMEOUT]


def test_a_producer_learns_why_the_transaction_of_the_one_before_could_not_be_ended() -> None:
    world = World()
    world.refuses = True
    assert world.init() == (UNAVAILABLE, -1, -1), "an identity that could not be recorded"
    world.refuses = False
    world.add(start(world), PARTITIONS[0])
    world.refuses = True
    assert world.init() == (UNAVAILABLE, -1, -1)
    world.refuses = False
    assert world.init() == (CONCURRENT, -1, -1)


def test_requests_without_a_name_are_invalid() -> None:
    state = loading()
    told: list[ErrorCode] = []
    state.init_producer_id("", TIMEOUT_MS, None, Effects(0, 0), lambda error, *_: told.append(error))
    assert told == [ErrorCode.INVALID_REQUEST]
    assert state.verify("", 7, 3, PARTITIONS[0]) == ErrorCode.INVALID_REQUEST
    assert ended(state, "") == [ErrorCode.INVALID_REQUEST]


# ---------------------------------------------------------------------- partitions
def test_a_second_change_waits_for_the_first() -> None:
    world = World()
    identity = start(world)
    world.holds_back = True
    assert world.add(identity, PARTITIONS[0]) is None
    assert world.add(identity, PARTITIONS[1]) == CONCURRENT
    assert world.init() == (CONCURRENT, -1, -1)
    assert world.end(identity, is_commit=True) == (CONCURRENT, -1, -1)
    world.commit()
    assert world.add(identity, PARTITIONS[1]) == NONE


def test_a_partition_belongs_to_an_open_transaction_that_has_it_and_to_no_other() -> None:
    state = loading()
    for each in TransactionState:
        state.transactions[NAME] = known(each)
        expected = {
            TransactionState.ONGOING: NONE,
            TransactionState.PREPARE_COMMIT: CONCURRENT,
            TransactionState.PREPARE_ABORT: CONCURRENT,
        }
        assert state.verify(NAME, 7, 3, PARTITIONS[0]) == expected.get(each, ErrorCode.TRANSACTION_ABORTABLE)
    state.transactions[NAME] = known()
    assert state.verify(NAME, 7, 3, PARTITIONS[1]) == ErrorCode.TRANSACTION_ABORTABLE
    assert state.verify(NAME, 8, 3, PARTITIONS[0]) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert state.verify("another", 7, 3, PARTITIONS[0]) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (
        state.verify(NAME, 7, 2, PARTITIONS[0]) == state.verify(NAME, 7, 4, PARTITIONS[0]) == ErrorCode.PRODUCER_FENCED
    )


def test_partitions_that_are_there_already_need_no_record() -> None:
    state = loading()
    state.transactions[NAME] = known(partitions=frozenset(PARTITIONS[:2]))
    for partitions, is_there in ((PARTITIONS[:1], True), (PARTITIONS[:2], True), ([], True), (PARTITIONS[1:], False)):
        assert added(state, partitions) == ([NONE] if is_there else []), partitions


def test_a_request_without_partitions_begins_a_transaction_too() -> None:
    """As in Kafka's `TransactionCoordinator.handleAddPartitionsToTransaction`."""
    world = World()
    identity = start(world)
    assert add(world, identity) == NONE
    assert world.state.transactions[NAME].state is TransactionState.ONGOING
    assert world.state.timers.deadline_of(("timeout", NAME)) is not None
    assert world.end(identity, is_commit=True) == (NONE, *identity)
    assert world.state.transactions[NAME].state is TransactionState.COMPLETE_COMMIT
    assert world.state.timers.deadline_of(("timeout", NAME)) is None


def test_only_the_begin_of_a_transaction_sets_its_deadline() -> None:
    """The wall clock may have been set since."""
    world = World()
    identity = start(world)
    assert add(world, identity, PARTITIONS[0]) == NONE
    deadline_ms = world.now_ms + TIMEOUT_MS
    world.now_ms += 100
    world.wall_offset_ms = -3_600_000
    assert add(world, identity, PARTITIONS[1]) == NONE
    assert world.state.timers.deadline_of(("timeout", NAME)) == deadline_ms


def test_what_could_not_be_begun_has_no_deadline() -> None:
    world = World()
    identity = start(world)
    world.refuses = True
    assert add(world, identity, PARTITIONS[0]) == UNAVAILABLE
    assert world.state.timers.deadline_of(("timeout", NAME)) is None


def test_a_request_that_changes_nothing_is_answered_without_a_record() -> None:
    world = World()
    identity = start(world)
    kept = len(world.log)
    stranger = (identity[0] + 1, 0)
    assert add(world, stranger, PARTITIONS[0]) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.end(stranger, is_commit=True) == (ErrorCode.INVALID_PRODUCER_ID_MAPPING, -1, -1)
    assert world.end(identity, is_commit=True) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert len(world.log) == kept
    add(world, identity, PARTITIONS[0])
    assert world.end(identity, is_commit=True) == (NONE, *identity)
    world.complete(world.told.pop())
    kept = len(world.log)
    assert world.end(identity, is_commit=True) == (NONE, *identity), "its response was lost"
    assert len(world.log) == kept


def test_a_transaction_begins_with_its_first_partition() -> None:
    world = World()
    identity = start(world)
    world.add(identity, PARTITIONS[0])
    began_ms = world.now_ms
    world.now_ms += 500
    world.add(identity, PARTITIONS[1], 2)
    transaction = world.state.transactions[NAME]
    assert (transaction.started_ms, transaction.client_version) == (began_ms, 2)
    assert transaction.partitions == set(PARTITIONS[:2])
    assert world.state.timers.deadline_of(("timeout", NAME)) == began_ms + TIMEOUT_MS


# ---------------------------------------------------------------------- ends
def test_an_end_that_could_not_be_kept_is_no_end() -> None:
    world = World()
    identity = start(world)
    world.add(identity, PARTITIONS[0], 2)
    world.refuses = True
    assert world.end(identity, is_commit=True, version=2) == (UNAVAILABLE, -1, -1)
    assert not world.told
    assert world.state.transactions[NAME].state is TransactionState.ONGOING


def test_an_end_without_partitions_is_complete_at_once_and_has_no_deadline() -> None:
    world = World()
    identity = start(world)
    assert world.end(identity, is_commit=False, version=2) == (NONE, identity[0], identity[1] + 1)
    assert world.state.transactions[NAME].state is TransactionState.COMPLETE_ABORT
    assert world.state.timers.deadline_of(("timeout", NAME)) is None


def test_an_end_that_may_be_lost_is_recorded_again_after_a_while() -> None:
    world = World()
    identity = start(world)
    world.add(identity, PARTITIONS[0])
    world.holds_back = True
    assert world.end(identity, is_commit=True) is None
    world.release(ErrorCode.REQUEST_TIMED_OUT)
    assert not world.told, "it may be lost"
    retry: Any = ("retry", NAME)
    assert world.state.timers.deadline_of(retry) == world.now_ms + RETRY_MS
    kept = len(world.log)
    world.run_timers(world.now_ms + RETRY_MS)
    assert [transaction.state for transaction in world.told] == [TransactionState.PREPARE_COMMIT]
    assert len(world.log) == kept + 1
    world.run_timers(world.now_ms + 10 * RETRY_MS)
    assert len(world.told) == 1, "its markers are on their way"


def test_an_end_is_not_told_by_a_coordinator_that_another_has_followed() -> None:
    world = World()
    world.add(identity := start(world), PARTITIONS[0])
    world.holds_back = True
    told: list[ErrorCode] = []
    world.decide(
        lambda effects: world.state.end(
            NAME, identity, is_commit=True, client_version=0, effects=effects, done=lambda error, *_: told.append(error)
        )
    )
    world.decide(world.state.on_unloaded)
    world.release(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told == [ErrorCode.NOT_COORDINATOR]
    assert not world.told
    assert world.state.timers.deadline_of(("retry", NAME)) is None
    assert world.state.count == 0


def test_an_end_whose_markers_are_being_sent_is_not_recorded_again() -> None:
    """A second sending would outlive the first, and end what begins after it."""
    world = World()
    world.add(identity := start(world), PARTITIONS[0])
    assert world.state.timers.deadline_of(("timeout", NAME)) is not None
    world.end(identity, is_commit=True)
    assert world.state.timers.deadline_of(("timeout", NAME)) is None
    kept = len(world.log)
    world.state.timers.schedule(("retry", NAME), 0)
    world.run_timers(world.now_ms)
    assert len(world.log) == kept
    assert len(world.told) == 1


def test_a_completion_that_could_not_be_kept_is_tried_again() -> None:
    world = World()
    world.add(identity := start(world), PARTITIONS[0])
    world.end(identity, is_commit=True)
    world.refuses = True
    world.complete(world.told.pop())
    assert world.state.transactions[NAME].state is TransactionState.PREPARE_COMMIT
    world.refuses = False
    world.run_timers(world.now_ms + RETRY_MS - 1)
    assert not world.told
    world.run_timers(world.now_ms + 1)
    world.complete(world.told.pop())
    assert world.state.transactions[NAME].state is TransactionState.COMPLETE_COMMIT


def test_only_the_end_of_the_present_epoch_is_completed() -> None:
    state = loading()
    assert completed(state, (7, 3)) == []
    state.transactions[NAME] = known()
    assert completed(state, (7, 3)) == []
    state.transactions[NAME] = known(TransactionState.PREPARE_ABORT)
    assert completed(state, (7, 2)) == []
    assert completed(state, (8, 3)) == []
    assert completed(state, (7, 3)) == [TransactionState.COMPLETE_ABORT]


# ---------------------------------------------------------------------- time
@pytest.mark.parametrize(
    ("wall_ms", "left_ms"),
    [
        (1_000_000, TIMEOUT_MS),
        (1_000_001, TIMEOUT_MS - 1),
        (1_000_000 + TIMEOUT_MS, 0),
        (2_000_000, 0),
        (999_000, TIMEOUT_MS),
    ],
)
def test_a_transaction_ends_when_its_time_is_up_and_in_any_case_that_long_from_now(wall_ms: int, left_ms: int) -> None:
    state = loading()
    state._watch(known(), Effects(60, wall_ms))
    assert state.timers.deadline_of(("timeout", NAME)) == 60 + left_ms


def test_a_transaction_that_took_too_long_is_tried_again_until_its_end_is_kept() -> None:
    world = World()
    world.add(start(world), PARTITIONS[0])
    world.refuses = True
    world.run_timers(world.now_ms + TIMEOUT_MS)
    assert not world.told
    assert world.state.timers.deadline_of(("timeout", NAME)) == world.now_ms + RETRY_MS
    world.refuses = False
    world.run_timers(world.now_ms + RETRY_MS)
    assert len(world.told) == 1


def test_what_is_due_of_an_id_waits_for_a_record_about_it() -> None:
    world = World()
    identity = start(world)
    world.add(identity, PARTITIONS[0])
    world.holds_back = True
    assert world.add(identity, PARTITIONS[1]) is None
    world.run_timers(world.now_ms + TIMEOUT_MS)
    assert not world.told
    assert world.state.timers.deadline_of(("timeout", NAME)) == world.now_ms + RETRY_MS
    world.commit()
    world.run_timers(world.now_ms + RETRY_MS)
    assert [transaction.partitions for transaction in world.told] == [frozenset(PARTITIONS[:2])]


@pytest.mark.parametrize("kind", ["timeout", "retry"])
def test_nothing_is_due_of_an_id_that_is_gone_or_idle(kind: str) -> None:
    state = loading()
    effects = Effects(0, 0)
    state.on_timer((kind, NAME), effects)
    state.transactions[NAME] = known(TransactionState.COMPLETE_ABORT)
    state.on_timer((kind, NAME), effects)
    assert not effects.records
    assert len(state.timers) == 0


def test_a_retry_gives_an_open_transaction_a_deadline_only_if_it_has_none() -> None:
    state = loading()
    state.transactions[NAME] = known()
    state.on_timer(("retry", NAME), Effects(60, 1_000_400))
    assert state.timers.deadline_of(("timeout", NAME)) == 60 + TIMEOUT_MS - 400
    state.timers.schedule(("timeout", NAME), 5)
    state.on_timer(("retry", NAME), Effects(60, 1_000_400))
    assert state.timers.deadline_of(("timeout", NAME)) == 5


def test_a_timeout_does_not_send_an_end_again() -> None:
    state = loading()
    state.transactions[NAME] = known(TransactionState.PREPARE_ABORT)
    effects = Effects(0, 0)
    state.on_timer(("timeout", NAME), effects)
    assert not effects.records
    state.on_timer(("retry", NAME), effects)
    assert len(effects.records) == 1


def test_ids_expire_that_have_not_changed_for_long_and_are_idle() -> None:
    state = loading()
    wall_ms = SETTINGS.id_expiration_ms + 100
    for name, each in {
        "old": TransactionState.EMPTY,
        "done": TransactionState.COMPLETE_COMMIT,
        "open": TransactionState.ONGOING,
    }.items():
        state.transactions[name] = known(each, updated_ms=100)
    state.transactions["newer"] = known(TransactionState.EMPTY, updated_ms=101)
    effects = Effects(0, wall_ms)
    state.on_timer(EXPIRY, effects)
    assert [change.transactional_id for change in effects.changes] == ["old", "done"]
    assert [change.state for change in effects.changes] == [None, None]
    again = Effects(0, wall_ms)
    state.on_timer(EXPIRY, again)
    assert not again.changes, "they are about to be forgotten"
    for change in effects.changes:
        state.note(change, 5)
    assert sorted(state.transactions) == ["newer", "open"]


def test_a_transaction_in_the_last_epoch_is_not_ended_without_an_id_for_its_producer() -> None:
    world = World()
    start(world)
    world.state.transactions[NAME].producer_epoch = EPOCH_MAX - 2
    last = start(world)
    world.add(last, PARTITIONS[0], 2)
    take, world.take_producer_id = world.take_producer_id, lambda: None
    assert world.init() == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
    world.run_timers(world.now_ms + TIMEOUT_MS)
    assert not world.told
    world.take_producer_id = take
    world.run_timers(world.now_ms + RETRY_MS)
    assert len(world.told) == 1
