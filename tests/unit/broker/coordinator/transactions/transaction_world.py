"""A transaction coordinator whose records are in a list, for tests of its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.transaction_records import decode_transaction
from lowtide.protocol.types import TopicPartition

NAME = "transfers"
TIMEOUT_MS = 10_000
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
NONE = ErrorCode.NONE


class World:
    """A coordinator whose records are in a list; the first `committed` of them cannot be lost."""

    def __init__(self, *, first_epoch: int = 0) -> None:
        self.log: list[tuple[bytes, bytes | None]] = []
        self.committed = 0
        self.refuses = False
        self.holds_back = False
        self.held: list[Callable[[ErrorCode, Effects], None]] = []
        self.told: list[Transaction] = []
        self.now_ms = 1_000_000
        self.wall_offset_ms = 0
        self.next_id = 100
        self.first_epoch = first_epoch
        self.state = Transactions(TransactionSettings(), self)
        self.epoch = 0

    def take_producer_id(self) -> int | None:
        self.next_id += 1
        return self.next_id

    def send_markers(self, transaction: Transaction) -> None:
        self.told.append(transaction)

    def decide(self, decision: Callable[[Effects], None]) -> None:
        effects = Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
        decision(effects)
        self.carry_out(effects)

    def carry_out(self, effects: Effects) -> None:
        error = NONE
        if effects.records:
            if self.refuses:
                error = ErrorCode.NOT_ENOUGH_REPLICAS
            else:
                self.log += effects.records
                for change in effects.changes:
                    self.state.note(change, len(self.log) - 1)
        if effects.records and self.holds_back and error == NONE:
            self.held += effects.then
            return
        if error == NONE and not self.holds_back:
            self.committed = len(self.log)
        for on_committed in effects.then:
            later = Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
            on_committed(error, later)
            self.carry_out(later)

    def commit(self) -> None:
        self.committed = len(self.log)
        self.release(NONE)

    def release(self, error: ErrorCode) -> None:
        """Requests that wait for a commit complete, or fail because it took too long."""
        self.holds_back = False
        held, self.held = self.held, []
        for on_committed in held:
            later = Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
            on_committed(error, later)
            self.carry_out(later)

    def restart(self, kept: int) -> None:
        """Another broker takes over, with a log that has at least the committed records."""
        del self.log[max(kept, self.committed) :]
        self.committed = len(self.log)
        self.held, self.told, self.holds_back, self.refuses = [], [], False, False
        self.epoch += 1
        self.state = Transactions(TransactionSettings(), self)
        for offset, record in enumerate(self.log):
            change = decode_transaction(*record)
            assert change is not None
            self.state.apply(change, offset)
        self.decide(self.state.on_loaded)

    def run_timers(self, until_ms: int) -> None:
        self.now_ms = until_ms
        while True:
            key = self.state.timers.take_due(self.now_ms)
            if key is None:
                return

            def decide(effects: Effects, due: Any = key) -> None:
                self.state.on_timer(due, effects)

            self.decide(decide)

    # Requests of producers
    def init(self, expected: tuple[int, int] | None = None) -> tuple[ErrorCode, int, int] | None:
        answers: list[tuple[ErrorCode, int, int]] = []
        self.decide(
            lambda effects: self.state.init_producer_id(
                NAME,
                TIMEOUT_MS,
                expected,
                effects,
                lambda error, producer, epoch, _later: answers.append((error, producer, epoch)),
            )
        )
        return answers[0] if answers else None

    def add(self, identity: tuple[int, int], partition: TopicPartition, version: int = 0) -> ErrorCode | None:
        answers: list[ErrorCode] = []
        self.decide(
            lambda effects: self.state.add_partitions(
                NAME, identity, [partition], version, effects, lambda error, _later: answers.append(error)
            )
        )
        return answers[0] if answers else None

    def end(self, identity: tuple[int, int], *, is_commit: bool, version: int = 0) -> tuple[ErrorCode, int, int] | None:
        answers: list[tuple[ErrorCode, int, int]] = []
        self.decide(
            lambda effects: self.state.end(
                NAME,
                identity,
                is_commit=is_commit,
                client_version=version,
                effects=effects,
                done=lambda error, producer, epoch, _later: answers.append((error, producer, epoch)),
            )
        )
        return answers[0] if answers else None

    def complete(self, transaction: Transaction) -> None:
        identity = (transaction.producer_id, transaction.producer_epoch)
        self.decide(lambda effects: self.state.on_all_marked(transaction.transactional_id, identity, effects))


def start(world: World) -> tuple[int, int]:
    answer = world.init()
    assert answer is not None
    assert answer[0] == NONE
    return answer[1:]
