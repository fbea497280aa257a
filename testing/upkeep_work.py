"""What clients do with topics of a simulated cluster that brokers delete from by themselves.

Each run has some of it, by its seed. Two groups are at different positions of what is kept (`kept_load`); what of it all of them have
consumed may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from lowtide.protocol.types import Offset
from lowtide.runtime.random import Random
from lowtide.testing import cluster_end
from lowtide.testing.cluster_load import PartitionLoad
from lowtide.testing.coordinator_work import LOST
from lowtide.testing.group_load import GroupLoad
from lowtide.testing.kept_load import GONE_WITHIN_S, KeptLoad, MinimumMover, some_rules

if TYPE_CHECKING:
    import asyncio

    from lowtide.testing.cluster_simulation import ClusterSimulation

KEPT_TOPIC: Final = "kept"
KEPT_PARTITIONS: Final = 2


class Client(Protocol):
    """Does things until told to end."""

    key: str

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None: ...


class UpkeepWork:
    """See the module."""

    def __init__(self, cluster: ClusterSimulation, random: Random, kinds: tuple[str, ...]) -> None:
        """`kinds` are those of the cluster."""
        self.kept: list[KeptLoad] = []
        self._cluster = cluster
        self._random = random
        self._groups: list[GroupLoad] = []
        if "retention" in kinds:
            self._rules = some_rules(random)
            self.kept = [
                KeptLoad(KEPT_TOPIC, number, cluster.client, self._source(), cluster.invariants, self._rules, self._consumed)
                for number in range(KEPT_PARTITIONS)
            ]
            self._groups = [
                GroupLoad(group_id, KEPT_TOPIC, KEPT_PARTITIONS, cluster.client, self._source(), cluster.work.counts)
                for group_id in ("ahead", "behind")
            ]
            cluster.work.add_consuming(self._groups)

    def _source(self) -> Random:
        return Random(self._random.getrandbits(64))

    @property
    def loads(self) -> Sequence[PartitionLoad]:
        """All partitions of these topics."""
        return self.kept

    def topics(self) -> dict[str, tuple[int, dict[str, str]]]:
        """The topics, with their numbers of partitions and their own configurations."""
        return {KEPT_TOPIC: (KEPT_PARTITIONS, self._rules.configs(self._random))} if self.kept else {}

    def actors(self) -> list[Client]:
        """All clients but those of partitions."""
        actors: list[Client] = []
        if self.kept:
            actors.append(MinimumMover(KEPT_TOPIC, self._rules, self._cluster.client("minimum"), self._source()))
            for group in self._groups:
                actors += group.make_committers()
        return actors

    def _consumed(self, partition: int) -> Offset:
        """What every group has asked to count as consumed, unless what is known of one may be lost."""
        if any(group.history.voids for group in self._groups):
            return LOST
        return min(group.history.requested_offset(partition) for group in self._groups)

    async def check_end(self) -> None:
        """D14: what rules let go of has gone. Errors: HistoryError."""
        if self.kept:
            await cluster_end.until(self._cluster, lambda: not self._overdue(), "what rules let go of has gone", GONE_WITHIN_S)

    def _overdue(self) -> bool:
        cluster = self._cluster
        for load in self.kept:
            state = cluster.partition(load.topic, load.partition)
            machine = next((each for each in cluster.machines if state is not None and each.broker_id == state.leader), None)
            topic = cluster.shared.image.topics[load.topic]
            watch = None if machine is None else cluster.invariants.replica(machine.broker_id, topic.topic_id, load.partition)
            if machine is not None and watch is not None and watch.log is not None and load.overdue(watch.log, machine):
                return True
        return False
