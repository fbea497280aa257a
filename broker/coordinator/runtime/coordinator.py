"""What the coordinators of groups, of transactions and of share states have in common, as handlers see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic, TopicSettings
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, S, Shard
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode

R = TypeVar("R")


class ShardedCoordinator(Generic[S]):
    """Finds the shard of a key, carries out decisions, and follows leaderships."""

    def __init__(
        self,
        broker: BrokerContext,
        administrator: TopicAdministrator,
        loop: Any,
        settings: TopicSettings,
        coordinated: CoordinatedTopic[S],
        *,
        is_alone: bool,
    ) -> None:
        """`is_alone`: the cluster never has other brokers."""
        self.broker = broker
        self.topic = OffsetsTopic(
            broker,
            administrator,
            settings,
            factor_is_given=not is_alone or coordinated.factor_key in broker.config.given,
            name=coordinated.name,
            configs=coordinated.configs,
        )
        self._runtime: CoordinatorRuntime[S] = CoordinatorRuntime(
            coordinated,
            replicas=broker.replicas,
            clock=broker.clock,
            loop=loop,
            worker=broker.worker,
            log=broker.log,
        )

    def find(self, key: str) -> Shard[S] | ErrorCode:
        """Returns the shard that a key belongs to. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        return self._runtime.find(self.topic.partition_of(key))

    def loaded(self) -> list[Shard[S]] | ErrorCode:
        """Returns all shards of this broker. Errors: COORDINATOR_LOAD_IN_PROGRESS until all of them are loaded."""
        self._follow()
        shards = list(self._runtime.shards.values())
        return shards if all(shard.loaded for shard in shards) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def each_shard(self) -> Iterator[Shard[S]]:
        """Yields the shards that are loaded when their turn comes."""
        for number in list(self._runtime.shards):
            shard = self._runtime.find(number)
            if not isinstance(shard, ErrorCode):
                yield shard

    def decide(self, shard: Shard[S], decision: Callable[[Pending[R], Effects], None]) -> Pending[R]:
        """Calls `decision` and carries out its effects. Returns the answer, which may be complete already."""
        pending: Pending[R] = Pending()
        effects = self._runtime.effects()
        decision(pending, effects)
        self._runtime.carry_out(shard, effects)
        return pending

    def carry_out(self, shard: Shard[S], decision: Callable[[Effects], None]) -> None:
        """Makes a decision that no request waits for, and carries it out."""
        effects = self._runtime.effects()
        decision(effects)
        self._runtime.carry_out(shard, effects)

    def on_tick(self) -> None:
        """Loads and unloads shards as leaderships change. Called about once a second."""
        if self.topic.exists or self._runtime.shards:
            self._follow()

    def close(self) -> None:
        """Answers NOT_COORDINATOR to all waiting requests: the broker stops."""
        self._runtime.close()

    def _follow(self) -> None:
        self._runtime.follow(self.topic.partition_count if self.topic.exists else 0)
