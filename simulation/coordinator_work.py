"""The clients of coordinators in a simulated cluster: groups of both protocols, and transactions.

The seed decides which a run has. Knowledge of a group or a transaction is dropped when the partition that stores it may
have lost records (`on_void`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final

from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC, java_hash
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId, TopicId
from lowtide.runtime.random import Random
from lowtide.simulation import cluster_end, transaction_end
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.consumer_group_load import CONSUMER_GROUP_SETTINGS, ConsumerGroupLoad
from lowtide.simulation.coordinated import Coordinated
from lowtide.simulation.group_load import GROUP_SETTINGS, GroupClient, GroupLoad
from lowtide.simulation.group_member import make_members
from lowtide.simulation.heartbeat_forms import STREAMS_GROUP_SETTINGS, StreamsForm
from lowtide.simulation.owning_member import OwnedTopic
from lowtide.simulation.transaction_load import TRANSACTION_SETTINGS, TransactionLoad
from lowtide.simulation.transformer import Transformer

WORK_TOPIC: Final = "work"
"""The topic whose partitions groups share and transformers read; no producer writes to it."""

WORK_PARTITIONS: Final = 3
GROUP_PARTITIONS: Final = int(GROUP_SETTINGS["offsets.topic.num.partitions"])

SHARED_TOPIC: Final = "shared"
"""The topic whose growing partitions consumer groups share; no producer writes to it."""

SHARED_PARTITIONS: Final = 4

LEDGER_TOPIC: Final = "ledger"
"""The topic that transactions write to."""

LEDGER_PARTITIONS: Final = 2
SOURCES: Final = 2
"""The number of partitions that transformers read."""

TRANSACTION_PARTITIONS: Final = int(TRANSACTION_SETTINGS["transaction.state.log.num.partitions"])

LOST: Final = 1 << 60
"""All records may be deleted, because knowledge of the groups may be lost."""

CONSUMED_SETTINGS: Final = {
    "log.retention.commitoffset.enable": "true",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "100",
}

_TOPIC_CONFIGS: Final = {
    WORK_TOPIC: {"retention.commitoffset.ms": "100"},
    GROUP_TOPIC: {"cleanup.policy": "compact"},
    TRANSACTION_TOPIC: {"cleanup.policy": "compact"},
}

_CONSUMERS_SEGMENT_BYTES: Final = "4000"
"""A consumer group's decisions must fit into a segment."""

COORDINATOR_SETTINGS: Final = GROUP_SETTINGS | CONSUMER_GROUP_SETTINGS | STREAMS_GROUP_SETTINGS
"""Broker settings for groups and transactions."""

COMPACTION_SETTINGS: Final = {"log.cleaner.backoff.ms": "500", "log.cleaner.min.cleanable.ratio": "0.1"}
"""Broker settings for frequent compaction of coordinators' logs."""

READ_WITHIN_S: Final = 15.0
_LOOK_S: Final = 0.05


class CoordinatorWork:
    """Starts the groups and transactions of a run, and checks them at its end."""

    def __init__(self, cluster: ClusterWorld, random: Random, kinds: tuple[str, ...]) -> None:
        self.counts: Counter[str] = Counter()
        self.groups: list[GroupLoad] = []
        self._consuming: list[GroupLoad] = []
        """Groups that commit for every partition from the start: what all have consumed may be deleted."""
        self.loads: list[PartitionLoad] = []
        """The loads of the partitions that groups share: what all have consumed may be deleted (KIP-68)."""
        self._cluster = cluster
        self._random = random
        if "groups" in kinds:
            self._crowd = self._group("crowd")
            self._single = self._group("single")
            self.loads = [
                PartitionLoad(WORK_TOPIC, number, cluster.client, Random(random.getrandbits(64)), cluster.invariants)
                for number in range(WORK_PARTITIONS)
            ]
        self.ledger: TransactionLoad | None = None
        if "transactions" in kinds:
            self.ledger = TransactionLoad(
                LEDGER_TOPIC, LEDGER_PARTITIONS, cluster.client, Random(random.getrandbits(64)), self.counts
            )
            self.ledger.sources = dict.fromkeys(range(SOURCES), WORK_TOPIC)
        self._consumers: list[ConsumerGroupLoad] = []
        if "consumers" in kinds:
            self._consumers = [self._consumer_group("alike"), self._consumer_group("mixed")]
            self.groups += self._consumers
        self._streams: list[ConsumerGroupLoad] = [self._consumer_group("streams")] if "streams" in kinds else []
        self.groups += self._streams

    def _group(self, group_id: str) -> GroupLoad:
        load = GroupLoad(
            group_id,
            WORK_TOPIC,
            WORK_PARTITIONS,
            self._cluster.client,
            Random(self._random.getrandbits(64)),
            self.counts,
        )
        load.on_commit = self._on_commit
        load.is_up_to_date = partial(self._is_up_to_date, java_hash(group_id) % GROUP_PARTITIONS)
        self.groups.append(load)
        self._consuming.append(load)
        return load

    def _consumer_group(self, group_id: str) -> ConsumerGroupLoad:
        load = ConsumerGroupLoad(
            group_id,
            OwnedTopic(SHARED_TOPIC, SHARED_PARTITIONS, self._shared_topic),
            self._cluster.client,
            Random(self._random.getrandbits(64)),
            self.counts,
        )
        number = java_hash(group_id) % GROUP_PARTITIONS
        load.known_at, load.is_up_to_date = partial(self._loaded, number), partial(self._is_up_to_date, number)
        return load

    def _is_up_to_date(self, number: int, broker_id: BrokerId) -> bool:
        broker = next(machine.broker for machine in self._cluster.machines if machine.broker_id == broker_id)
        session = None if broker is None else broker._session  # noqa: SLF001 - no client can see it
        present = self._cluster.shared.image
        images = (present, present if session is None else session.image)
        states = [image.topics[GROUP_TOPIC].partitions[number] for image in images if GROUP_TOPIC in image.topics]
        leaderships = {(state.leader, state.leader_epoch) for state in states}
        return len(states) == len(images) and len(leaderships) == 1 and states[0].leader == broker_id

    def _loaded(self, number: int, broker_id: BrokerId) -> object:
        """Returns the broker's state of the groups of a partition, None until it is loaded, without loading it."""
        broker = next(machine.broker for machine in self._cluster.machines if machine.broker_id == broker_id)
        if broker is None or broker.serving is None:
            return None
        shard = broker.serving.coordinators.groups._runtime.shards.get(number)  # noqa: SLF001 - no client can see it
        return shard if shard is not None and shard.loaded else None

    def _shared_topic(self) -> tuple[TopicId, int]:
        """Returns the topic's id and number of partitions. Errors: OSError while the store is lost."""
        topic = self._cluster.shared.image.topics.get(SHARED_TOPIC)
        if topic is None:
            raise ConnectionError(f"nobody knows {SHARED_TOPIC}")
        return topic.topic_id, len(topic.partitions)

    def add_consuming(self, groups: list[GroupLoad]) -> None:
        """Adds groups of other loads that commit offsets."""
        self.groups += groups
        self._consuming += groups

    def _on_commit(self, partition: int) -> None:
        """Checks that records are kept which a group has not consumed, unless its commits may be lost (D7)."""
        consuming = [load for load in self._consuming if load.topic == WORK_TOPIC]
        known = [load.history for load in consuming if not load.history.voids]
        consumed = min((history.requested_offset(partition) for history in known), default=LOST)
        history = self.loads[partition].history
        history.requested_delete = max(history.requested_delete, consumed if len(known) == len(consuming) else LOST)

    def topics(self) -> dict[str, int]:
        """Returns the initial topics with their numbers of partitions, sometimes that of groups with small segments."""
        made = {WORK_TOPIC: WORK_PARTITIONS} if self.loads or self.ledger is not None else {}
        if self._consumers or self._streams:
            made[SHARED_TOPIC] = SHARED_PARTITIONS
        if (made or self._consuming) and self._random.random() < 0.5:  # noqa: PLR2004
            made[GROUP_TOPIC] = GROUP_PARTITIONS
        if self.ledger is not None:
            made[LEDGER_TOPIC] = LEDGER_PARTITIONS
            if self._random.random() < 0.5:  # noqa: PLR2004
                made[TRANSACTION_TOPIC] = TRANSACTION_PARTITIONS
        return made

    def topic_configs(self, name: str) -> dict[str, str]:
        configs = _TOPIC_CONFIGS.get(name, {})
        return (
            configs | {"internal.segment.bytes": _CONSUMERS_SEGMENT_BYTES}
            if name == GROUP_TOPIC and (self._consumers or self._streams)
            else configs
        )

    def actors(self) -> list[Coordinated]:
        actors: list[Coordinated] = []
        if self.loads:
            members = make_members(self._crowd, (None, None, "one", self._random.choice((None, "two"))))
            actors += [
                *members,
                *self._single.make_committers(),
                self._crowd.make_fetcher(),
                self._single.make_fetcher(),
            ]
        if self._consumers:
            alike, mixed = self._consumers
            actors += alike.make_consumers((None, None, "one", self._random.choice((None, "two"))))
            actors += mixed.make_consumers((None,), (None, self._random.choice((None, "one"))))
            actors += mixed.share_seat("two")
            actors += [alike.make_fetcher(), mixed.make_fetcher(), alike.make_grower()]
        for streams in self._streams:
            actors += streams.make_consumers((None, None, "one", self._random.choice((None, "two"))), form=StreamsForm)
            actors += [streams.make_fetcher(), streams.make_grower()]
        if self.ledger is not None:
            actors += [*self.ledger.make_producers(("shared", "shared", "own")), *self.ledger.make_readers()]
            actors += [
                Transformer(
                    self.ledger,
                    self._cluster.client(f"transf {index}"),
                    Random(self._random.getrandbits(64)),
                    WORK_TOPIC,
                    source,
                )
                for index, source in enumerate((0, 0, 1))
            ]
        return actors

    def on_void(self, topic: str, number: int) -> None:
        for load in self.groups:
            if topic == GROUP_TOPIC and number == java_hash(load.group_id) % GROUP_PARTITIONS:
                load.history.void()
                for each in self.loads:
                    self._on_commit(each.partition)
        if self.ledger is not None and topic in {LEDGER_TOPIC, TRANSACTION_TOPIC, GROUP_TOPIC}:
            self.ledger.history.void()

    async def begin(self) -> None:
        """Commits for every partition of each group, so that it counts as a consumer. Errors: HistoryError."""
        for load in self._consuming:
            client = GroupClient(
                load, self._cluster.client(f"{load.group_id} at the beginning"), Random(self._random.getrandbits(64))
            )
            left = list(range(load.partitions))
            give_up_s = self._cluster.loop.time() + READ_WITHIN_S
            while left and self._cluster.loop.time() < give_up_s:
                try:
                    if await client.commit(left[0]) == ErrorCode.NONE:
                        del left[0]
                    else:
                        client.forget_coordinator()
                except OSError:
                    client.forget_coordinator()
                await asyncio.sleep(_LOOK_S)
            client.client.close()

    # The end

    async def come_to_rest(self) -> None:
        """Checks that members are soon in one generation, and every partition has an owner (G6).

        Errors: HistoryError.
        """
        for load in self.groups:
            load.is_calm = True
        for load in self.groups:
            if load.members and self._can_be_coordinated(load):
                await self._until_stable(load)
                await self._lose_a_member(load)
                await self._until_stable(load)

    async def _until_stable(self, load: GroupLoad) -> None:
        what = f"all members of group {load.group_id} are in one generation"
        await cluster_end.until(self._cluster, lambda: load.is_stable, what, load.stable_within_s)

    async def _lose_a_member(self, load: GroupLoad) -> None:
        """Removes a member permanently and kills its coordinator, so that the next one must notice."""
        cluster = self._cluster
        self._random.choice([member for member in load.members if not member.is_away]).is_gone = True
        state = cluster.partition(GROUP_TOPIC, java_hash(load.group_id) % GROUP_PARTITIONS)
        machine = next(
            (machine for machine in cluster.machines if state is not None and machine.broker_id == state.leader), None
        )
        if machine is not None:
            cluster.kill(machine)
            await cluster.sleep(0.0, 0.5)
            cluster.start(machine)
            await cluster.until_up(machine)

    async def check_end(self) -> None:
        """Checks that every acknowledged commit is returned (G3), and `transaction_end` (T2, T4).

        Errors: HistoryError.
        """
        for load in self.groups:
            if self._can_be_coordinated(load):
                await self._fetch_all(load)
        if self.ledger is not None:
            await transaction_end.check_end(self._cluster, self.ledger)

    async def _fetch_all(self, load: GroupLoad) -> None:
        client = GroupClient(
            load, self._cluster.client(f"{load.group_id} at the end"), Random(self._random.getrandbits(64))
        )
        give_up_s = self._cluster.loop.time() + READ_WITHIN_S
        while self._cluster.loop.time() < give_up_s:
            try:
                if await client.fetch(list(range(load.partitions))):
                    break
            except OSError:
                pass
            await asyncio.sleep(_LOOK_S)
        else:
            self._cluster.chronicle.violate(
                f"L1: the offsets of group {load.group_id} aren't returned within {READ_WITHIN_S} s"
            )
        client.client.close()

    def _can_be_coordinated(self, load: GroupLoad) -> bool:
        return cluster_end.can_be_led(self._cluster, GROUP_TOPIC, java_hash(load.group_id) % GROUP_PARTITIONS)
