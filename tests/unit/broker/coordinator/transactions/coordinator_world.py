"""The transactions of one broker over partitions in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC, TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from tests.unit.broker.coordinator.broker_world import DATA, HERE, NONE, THERE, BrokerWorld, topic

NAME, TIMEOUT_MS = "transfers", 10_000


class World(BrokerWorld):
    """A coordinator whose topic has these leaders."""

    def __init__(self, *leaders: int, is_alone: bool = False, **settings: str) -> None:
        super().__init__(TRANSACTION_TOPIC, *leaders, **settings)
        groups: Any = SimpleNamespace(is_kept_in=lambda _topic: False)
        self.coordinator = TransactionCoordinator(
            self.broker, self.administrator, self.peers(), groups, self.loop, is_alone=is_alone
        )

    def peers(self) -> Any:
        """The connections to other brokers: there are none."""
        return None

    def shard(self, name: str = NAME) -> Shard[Transactions]:
        found = self.coordinator.find(name)
        assert isinstance(found, Shard)
        return found

    def shards(self) -> list[Shard[Transactions]]:
        """All that is coordinated here."""
        found = self.coordinator.loaded()
        assert not isinstance(found, ErrorCode)
        return found

    def begin(self, *, partitions: tuple[TopicPartition, ...] = (DATA,), client_version: int = 2) -> Transaction:
        """A producer, with an open transaction where there are partitions."""
        shard = self.shard()
        self.coordinator.ids._left = range(100, 200)
        self.coordinator.decide(
            shard,
            lambda _reply, effects: shard.state.init_producer_id(NAME, TIMEOUT_MS, None, effects, lambda *_: None),
        )
        known = shard.state.transactions[NAME]
        if partitions:
            identity = known.producer_id, known.producer_epoch
            added = self.coordinator.add_partitions(
                shard, NAME, identity, partitions, client_version, lambda error: error
            )
            assert added.response == NONE
        return shard.state.transactions[NAME]

    def end(self, *, is_commit: bool = True, client_version: int = 2) -> Transaction:
        """End the open transaction: its markers are on their way."""
        shard = self.shard()
        known = shard.state.transactions[NAME]
        identity = known.producer_id, known.producer_epoch
        answers: list[ErrorCode] = []
        self.coordinator.carry_out(
            shard,
            lambda effects: shard.state.end(
                NAME,
                identity,
                is_commit=is_commit,
                client_version=client_version,
                effects=effects,
                done=lambda error, *_: answers.append(error),
            ),
        )
        assert answers == [NONE]
        return shard.state.transactions[NAME]


__all__ = ["DATA", "HERE", "NAME", "NONE", "THERE", "TIMEOUT_MS", "World", "topic"]
