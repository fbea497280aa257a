"""A transaction coordinator under any sequence of requests, failures, restarts and lost records.

Protected: all partitions of a transaction get the same end; a commit that was reported to a producer is a commit; no
reported result is undone by a crash; when all parts work again, no transaction is open.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from lowtide.broker.coordinator.transactions.transaction import EPOCH_MAX, Transaction
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import read_batch_header
from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.markers import make_marker
from lowtide.storage.log.producers.producer_state import ACCEPTED, ProducerStateManager
from tests.examples import examples

from .transaction_world import NAME, NONE, PARTITIONS, TIMEOUT_MS, World, start


class TransactionMachine(RuleBasedStateMachine):
    """`version` 2 has an epoch for each transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.partitions = {key: ProducerStateManager() for key in PARTITIONS}
        self.open: dict[tuple[TopicPartition, int], set[int]] = {}
        """Partition and producer id → the transactions whose records are open there."""
        self.ends: dict[int, set[bool]] = {}
        self.told_committed: set[int] = set()
        self.producers: list[tuple[int, int]] = []
        self.current: dict[tuple[int, int], int] = {}
        self.ending: dict[tuple[int, int], bool] = {}
        """Producers whose EndTxn has no known result. Like real clients, they retry it, and write nothing meanwhile."""
        self.offset = 0
        self.transaction = 0

    @initialize(seed=st.integers(0, 2**32), version=st.sampled_from([0, 2]))
    def begin(self, seed: int, version: int) -> None:
        self.random = Random(seed)
        self.version = version

    @rule()
    def start_producer(self) -> None:
        answer = self.world.init()
        if answer is not None and answer[0] == NONE:
            identity = answer[1:]
            assert identity not in self.producers, "two producers with one epoch"
            self.producers.append(identity)

    @rule(back=st.integers(0, 2), partition=st.sampled_from(PARTITIONS))
    def produce(self, back: int, partition: TopicPartition) -> None:
        if back >= len(self.producers):
            return
        identity = self.producers[-1 - back]
        if identity in self.ending or self.world.add(identity, partition, self.version) != NONE:
            return
        producer_id, epoch = identity
        self.current.setdefault(identity, self._next_transaction())
        state = self.partitions[partition]
        if self.world.state.verify(NAME, producer_id, epoch, partition) != NONE:
            return
        entry = state.producers.get(producer_id)
        sequence = entry.last_sequence + 1 if entry is not None and entry.producer_epoch == epoch else 0
        if state.check(producer_id, epoch, sequence, 1, is_transactional=True) is not ACCEPTED:
            return
        self.offset += 1
        batch = build_batch(
            [(1, None, None, ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        state.update(read_batch_header(batch), base_offset=self.offset, now_ms=1)
        self.open.setdefault((partition, producer_id), set()).add(self.current[identity])

    def _next_transaction(self) -> int:
        self.transaction += 1
        return self.transaction

    @rule(back=st.integers(0, 2), is_commit=st.booleans())
    def end(self, back: int, is_commit: bool) -> None:
        if back >= len(self.producers):
            return
        identity = self.producers[-1 - back]
        is_commit = self.ending.get(identity, is_commit)
        answer = self.world.end(identity, is_commit=is_commit, version=self.version)
        if answer is None or answer[0] in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self.ending[identity] = is_commit
            return
        self.ending.pop(identity, None)
        number = self.current.pop(identity, None)
        if answer[0] != NONE:
            return
        if number is not None and is_commit:
            self.told_committed.add(number)
        if self.version and answer[1:] not in self.producers:
            self.producers[-1 - back] = answer[1:]

    @rule(count=st.integers(1, 3))
    def tell(self, count: int) -> None:
        """Markers reach some of the partitions of an end; when all have theirs, the end is complete."""
        if not self.world.told:
            return
        transaction = self.world.told[0]
        left = sorted(transaction.partitions - getattr(self, "written", set()))
        self.written = getattr(self, "written", set())
        for partition in left[:count]:
            self._mark(partition, transaction)
            self.written.add(partition)
        if transaction.partitions <= self.written:
            self.written = set()
            self.world.told.pop(0)
            self.world.complete(transaction)

    def _mark(self, partition: TopicPartition, transaction: Transaction) -> None:
        state, producer_id = self.partitions[partition], transaction.producer_id
        is_commit = transaction.state is TransactionState.PREPARE_COMMIT
        bumped = transaction.bumps_epochs
        verdict = state.check_marker(producer_id, transaction.producer_epoch, self.world.epoch, epoch_is_bumped=bumped)
        assert verdict != ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if verdict is not ACCEPTED:
            return
        marker = make_marker(
            producer_id,
            transaction.producer_epoch,
            is_commit=is_commit,
            coordinator_epoch=self.world.epoch,
            epoch_is_bumped=bumped,
            now_ms=1,
        )
        self.offset += 1
        state.end_transaction(
            producer_id, transaction.producer_epoch, marker.control, marker_offset=self.offset, timestamp=1, now_ms=1
        )
        for number in self.open.pop((partition, producer_id), set()):
            self.ends.setdefault(number, set()).add(is_commit)
            assert len(self.ends[number]) == 1, "partitions received different ends"
            assert is_commit or number not in self.told_committed, "a committed transaction was aborted"

    @rule(count=st.integers(5, 25))
    def work(self, count: int) -> None:
        """Many of the operations above, without obstacles; any of them may be the last."""
        self.world.refuses = False
        self.world.commit()
        if not self.producers:
            self.start_producer()
        for _ in range(count):
            drawn = self.random.random()
            if drawn < 0.5:
                self.produce(0, self.random.choice(PARTITIONS))
            elif drawn < 0.75:
                self.end(0, self.random.random() < 0.5)
            elif drawn < 0.97:
                self.tell(self.random.randint(1, 3))
            else:
                self.start_producer()

    @rule(passed_ms=st.sampled_from([10, 1500, TIMEOUT_MS, TIMEOUT_MS * 3]))
    def wait(self, passed_ms: int) -> None:
        self.world.run_timers(self.world.now_ms + passed_ms)

    @rule(refuses=st.booleans())
    def refuse_records(self, refuses: bool) -> None:
        self.world.refuses = refuses

    @rule()
    def hold_back(self) -> None:
        self.world.holds_back = True

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(count=st.integers(1, 4))
    def take_too_long(self, count: int) -> None:
        """The records are in the log, but may still be lost."""
        self.world.holds_back = True
        for _ in range(count):
            if self.random.random() < 0.5:
                self.end(0, self.random.random() < 0.5)
            else:
                self.tell(3)
        self.world.release(ErrorCode.REQUEST_TIMED_OUT)

    @rule(lost=st.integers(0, 3))
    def restart(self, lost: int) -> None:
        self.written = set()
        self.world.restart(len(self.world.log) - lost)

    def teardown(self) -> None:
        if not hasattr(self, "random"):
            return
        self.world.refuses = False
        self.world.commit()
        for _ in range(20):
            self.wait(TIMEOUT_MS)
            self.tell(len(PARTITIONS))
        assert not self.open, "a transaction hangs"
        for partition in self.partitions.values():
            assert not len(partition.transactions)
        known = self.world.state.transactions.get(NAME)
        assert known is None or known.state in (
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        )


TransactionMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
test_any_history_of_transactions = TransactionMachine.TestCase


def test_another_producer_ends_what_is_open_and_gets_an_epoch_two_higher() -> None:
    world = World()
    first = start(world)
    assert world.add(first, PARTITIONS[0]) == NONE
    assert world.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    (aborted,) = world.told
    assert (aborted.state, aborted.producer_epoch) == (TransactionState.PREPARE_ABORT, first[1] + 1)
    assert world.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    world.complete(aborted)
    assert start(world) == (first[0], first[1] + 2)
    assert world.end(first, is_commit=True) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_the_same_end_may_be_repeated_and_no_other() -> None:
    world = World()
    identity = start(world)
    assert world.end(identity, is_commit=True) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    world.add(identity, PARTITIONS[0])
    assert world.end(identity, is_commit=True) == (NONE, *identity)
    assert world.end(identity, is_commit=True) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    assert world.add(identity, PARTITIONS[0]) == ErrorCode.CONCURRENT_TRANSACTIONS
    world.complete(world.told.pop())
    assert world.end(identity, is_commit=True) == (NONE, *identity)
    assert world.end(identity, is_commit=False) == (ErrorCode.INVALID_TXN_STATE, -1, -1)


def test_each_transaction_has_its_own_epoch_and_an_empty_one_may_be_aborted() -> None:
    world = World()
    producer_id, epoch = start(world)
    world.add((producer_id, epoch), PARTITIONS[0], 2)
    assert world.end((producer_id, epoch), is_commit=True, version=2) == (NONE, producer_id, epoch + 1)
    assert world.end((producer_id, epoch), is_commit=True, version=2) == (ErrorCode.CONCURRENT_TRANSACTIONS, -1, -1)
    world.complete(world.told.pop())
    assert world.end((producer_id, epoch), is_commit=True, version=2) == (NONE, producer_id, epoch + 1), (
        "its response was lost"
    )
    assert world.end((producer_id, epoch), is_commit=False, version=2) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert world.end((producer_id, epoch + 1), is_commit=True, version=2) == (ErrorCode.INVALID_TXN_STATE, -1, -1)
    assert world.end((producer_id, epoch + 1), is_commit=False, version=2) == (NONE, producer_id, epoch + 2)
    assert not world.told


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_whose_epochs_are_used_up_gets_another_id(version: int) -> None:
    world = World()
    producer_id, _ = start(world)
    world.state.transactions[NAME].producer_epoch = EPOCH_MAX - 2
    before = start(world)
    assert before == (producer_id, EPOCH_MAX - 1)
    world.add(before, PARTITIONS[0], version)
    ended = world.end(before, is_commit=True, version=version)
    world.complete(world.told.pop())
    if version:
        assert ended == (NONE, producer_id + 1, 0)
        assert world.end(before, is_commit=True, version=2) == (NONE, producer_id + 1, 0), "its response was lost"
    else:
        assert start(world) == (producer_id + 1, 0)
    assert world.add(before, PARTITIONS[0]) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_that_continues_after_an_error_sends_its_epoch() -> None:
    world = World()
    producer_id, epoch = start(world)
    assert world.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1)
    assert world.init((producer_id, epoch)) == (NONE, producer_id, epoch + 1), "the same response again"
    assert world.init((producer_id + 5, epoch)) == (ErrorCode.PRODUCER_FENCED, -1, -1)
    assert start(world) == (producer_id, epoch + 2)
    assert world.init((producer_id, epoch)) == (ErrorCode.PRODUCER_FENCED, -1, -1)


def test_markers_are_written_once_though_the_end_before_took_too_long_to_complete() -> None:
    """A second time, they would end the next transaction of the same epoch on some of its partitions."""
    world = World()
    identity = start(world)
    world.add(identity, PARTITIONS[0])
    world.end(identity, is_commit=True)
    world.holds_back = True
    world.complete(world.told.pop())
    world.release(ErrorCode.REQUEST_TIMED_OUT)
    world.commit()
    world.add(identity, PARTITIONS[1])
    assert world.end(identity, is_commit=False) == (NONE, *identity)
    world.run_timers(world.now_ms + TIMEOUT_MS)
    assert [transaction.partitions for transaction in world.told] == [frozenset({PARTITIONS[1]})]


def test_a_transaction_whose_first_record_took_too_long_to_commit_ends_in_time() -> None:
    world = World()
    identity = start(world)
    world.holds_back = True
    assert world.add(identity, PARTITIONS[0]) is None
    world.release(ErrorCode.REQUEST_TIMED_OUT)
    world.run_timers(world.now_ms + TIMEOUT_MS)
    assert [transaction.state for transaction in world.told] == [TransactionState.PREPARE_ABORT]


@pytest.mark.parametrize("moves", [False, True], ids=["it stays", "another coordinator takes over"])
@pytest.mark.parametrize("offset_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_set_leaves_no_transaction_open(offset_ms: int, *, moves: bool) -> None:
    """The clock is an hour wrong when the transaction begins, and right when the timeout passes."""
    world = World()
    world.wall_offset_ms = offset_ms
    assert world.add(start(world), PARTITIONS[0]) == NONE
    world.wall_offset_ms = 0
    if moves:
        world.restart(len(world.log))
    world.run_timers(world.now_ms + TIMEOUT_MS)
    assert [transaction.state for transaction in world.told] == [TransactionState.PREPARE_ABORT]


def test_an_unused_id_is_forgotten() -> None:
    world = World()
    world.decide(world.state.on_loaded)
    start(world)
    world.run_timers(world.now_ms + TransactionSettings().id_expiration_ms + 1)
    world.run_timers(world.now_ms + TransactionSettings().expiry_check_interval_ms)
    assert not world.state.transactions
    world.restart(len(world.log))
    assert not world.state.transactions
