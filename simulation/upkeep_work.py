"""Clients of topics with automatic deletion or compaction.

The seed decides which a run has. Two groups are at different positions of such a topic (`kept_load`); what both have
consumed may be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.protocol.types import Offset
from lowtide.runtime.random import Random
from lowtide.simulation import cluster_end
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.coordinator_work import LOST, CoordinatorWork
from lowtide.simulation.group_load import GroupLoad
from lowtide.simulation.kept_load import GONE_WITHIN_S, KeptLoad, MinimumMover, some_rules
from lowtide.simulation.keyed_load import (
    COMPACTED_WITHIN_S,
    KeyedAuditor,
    KeyedLoad,
    KeyedTransactionLoad,
    compacted_configs,
)

if TYPE_CHECKING:
    import asyncio


KEPT_TOPIC: Final = "kept"
KEPT_PARTITIONS: Final = 2
KEYED_TOPIC: Final = "keyed"
KEYED_PARTITIONS: Final = 2


class Client(Protocol):
    """A client that takes steps until the run ends."""

    key: str

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None: ...


class UpkeepWork:
    """Starts the loads of topics with retention or compaction, and checks them at the end."""

    def __init__(self, cluster: ClusterWorld, work: CoordinatorWork, random: Random, kinds: tuple[str, ...]) -> None:
        self.kept: list[KeptLoad] = []
        self._cluster = cluster
        self._random = random
        self._groups: list[GroupLoad] = []
        if "retention" in kinds:
            self._rules = some_rules(random)
            self.kept = [
                KeptLoad(
                    KEPT_TOPIC, number, cluster.client, self._source(), cluster.invariants, self._rules, self._consumed
                )
                for number in range(KEPT_PARTITIONS)
            ]
            self._groups = [
                GroupLoad(group_id, KEPT_TOPIC, KEPT_PARTITIONS, cluster.client, self._source(), work.counts)
                for group_id in ("ahead", "behind")
            ]
            work.add_consuming(self._groups)
        self.keyed: list[KeyedLoad] = []
        if "compaction" in kinds:
            self._has_transactions = random.random() < 0.5  # noqa: PLR2004
            self._keyed_configs = compacted_configs(random, with_transactions=self._has_transactions)
            self.keyed = [
                KeyedLoad(KEYED_TOPIC, number, cluster.client, self._source(), cluster.invariants, self._keyed_configs)
                for number in range(KEYED_PARTITIONS)
            ]
            self._auditor = KeyedAuditor(cluster, self.keyed, self._source())
            self._transactions = KeyedTransactionLoad(
                KEYED_TOPIC, KEYED_PARTITIONS, cluster.client, self._source(), work.counts
            )
            self._transactions.use(self.keyed)

    def _source(self) -> Random:
        return Random(self._random.getrandbits(64))

    @property
    def loads(self) -> Sequence[PartitionLoad]:
        return [*self.kept, *self.keyed]

    def topics(self) -> dict[str, tuple[int, dict[str, str]]]:
        """Returns the topics, with numbers of partitions and configurations."""
        made = {KEPT_TOPIC: (KEPT_PARTITIONS, self._rules.configs(self._random))} if self.kept else {}
        if self.keyed:
            made[KEYED_TOPIC] = KEYED_PARTITIONS, self._keyed_configs
        return made

    def actors(self) -> list[Client]:
        actors: list[Client] = []
        if self.kept:
            actors.append(MinimumMover(KEPT_TOPIC, self._rules, self._cluster.client("minimum"), self._source()))
            for group in self._groups:
                actors += group.make_committers()
        if self.keyed:
            actors.append(self._auditor)
            if self._has_transactions:
                actors += self._transactions.make_producers(("keyed", "keyed too"))
        return actors

    def on_void(self, topic: str, _number: int) -> None:
        if self.keyed and topic in {KEYED_TOPIC, TRANSACTION_TOPIC}:
            self._transactions.history.void()

    def _consumed(self, partition: int) -> Offset:
        """Returns what every group has consumed, unless knowledge of one may be lost."""
        if any(group.history.voids for group in self._groups):
            return LOST
        return min(group.history.requested_offset(partition) for group in self._groups)

    async def check_end(self) -> None:
        """Checks what rules (D14) and compaction (C2) must have deleted, and that the rest is right (C1).

        Errors: HistoryError.
        """
        if self.kept:
            await cluster_end.until(
                self._cluster, lambda: not self._overdue(), "what rules let go of has gone", GONE_WITHIN_S
            )

        for load in self.keyed:
            if not cluster_end.can_be_led(self._cluster, load.topic, load.partition):
                continue
            self._auditor.look(load)
            if self._transactions.history.is_void or not self._have_coordinators():
                continue  # One may stay open for ever, and nothing behind it is compacted.
            what = f"C2: {load.history.name} is compacted"
            await cluster_end.until(self._cluster, partial(self._auditor.is_compacted, load), what, COMPACTED_WITHIN_S)
            self._auditor.look(load)

    def _have_coordinators(self) -> bool:
        """Returns whether each partition of the transaction topic can be led, so that all transactions can end."""
        topic = self._cluster.shared.image.topics.get(TRANSACTION_TOPIC)
        numbers = range(0 if topic is None else len(topic.partitions))
        return all(cluster_end.can_be_led(self._cluster, TRANSACTION_TOPIC, number) for number in numbers)

    def _overdue(self) -> bool:
        cluster = self._cluster
        for load in self.kept:
            state = cluster.partition(load.topic, load.partition)
            machine = next(
                (each for each in cluster.machines if state is not None and each.broker_id == state.leader), None
            )
            topic = cluster.shared.image.topics[load.topic]
            watch = (
                None
                if machine is None
                else cluster.invariants.watches.find(machine.broker_id, topic.topic_id, load.partition)
            )
            if machine is not None and watch is not None and watch.log is not None and load.overdue(watch.log, machine):
                return True
        return False
