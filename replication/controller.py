"""The controller's own work: repairs after broker changes, reassignments, preferred leaders, clean-up.

Pure: images and the time go in, a plan comes out. A plan carries every comparison that it relies on, so a plan decided
on an outdated image conflicts in the store and does no harm. It compares the desired state with the present one, so it
may be computed at any time, repeatedly. `ControllerWork` only remembers which partitions to examine.

Requests of clients are decided in `new_topics`, `new_partitions`, `deletions`, `reassignments`, `requested_elections`.

Sources: Kafka's `ReplicationControlManager`, `QuorumController` (`maybeBalancePartitionLeaders`); KIP-455.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata.changes import ChangePlan
from lowtide.replication.acl_changes import plan_left_change
from lowtide.replication.elections import Election, elect, is_healthy, steady_epochs
from lowtide.replication.steps import PartitionChanges
from lowtide.replication.sweep import plan_features, plan_sweep, plan_sweep_of_marks, plan_sweep_of_tombstones

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage, TopicImage
    from lowtide.metadata.records import PartitionRecord
    from lowtide.protocol.types import BrokerId, TopicId

PREFERRED_ELECTIONS_MAX: Final = 1000
"""The most preferred elections in one plan. Source: Kafka's `MAX_ELECTIONS_PER_IMBALANCE`."""

UNCLEAN_KEY: Final = "unclean.leader.election.enable"
MIN_IN_SYNC_KEY: Final = "min.insync.replicas"

Numbers = dict[int, None]
"""Partitions of a topic, in the order in which they were noted."""


class ControllerSettings(msgspec.Struct, frozen=True):
    """The configuration of elections. `elects_unclean` and `min_insync_replicas` are the defaults of topics."""

    elects_unclean: bool = False
    min_insync_replicas: int = 1
    rebalances: bool = True
    rebalance_interval_ms: int = 300_000


DEFAULT_SETTINGS: Final = ControllerSettings()


def elects_unclean(topic: TopicImage, settings: ControllerSettings) -> bool:
    """Returns whether a replica that lacks records may lead a partition of this topic if no other can."""
    text = topic.configs.get(UNCLEAN_KEY)
    return settings.elects_unclean if text is None else text == "true"


def min_insync_replicas(topic: TopicImage, settings: ControllerSettings) -> int:
    """Returns `min.insync.replicas` of the topic."""
    text = topic.configs.get(MIN_IN_SYNC_KEY)
    return settings.min_insync_replicas if text is None else int(text)


def plan_controller_work(
    image: MetadataImage,
    settings: ControllerSettings = DEFAULT_SETTINGS,
    *,
    among: Mapping[TopicId, Iterable[int]] | None = None,
    rebalance: bool = False,
) -> ChangePlan:
    """Plans everything that a controller has to do; empty if nothing.

    `among` limits the work to these partitions, by topic; None means all. `rebalance` elects preferred leaders.
    """
    changes = PartitionChanges(image)
    _gather_leaders(changes, image, settings, among)
    if rebalance:
        _gather_preferred(changes, image, settings)
    tidied = (
        plan_features(image),
        plan_sweep(image),
        plan_sweep_of_marks(image),
        plan_sweep_of_tombstones(image),
        plan_left_change(image),
    )
    return ChangePlan(changes.plan().steps + tuple(step for plan in tidied for step in plan.steps))


def _gather_leaders(
    changes: PartitionChanges,
    image: MetadataImage,
    settings: ControllerSettings,
    among: Mapping[TopicId, Iterable[int]] | None,
) -> None:
    """Adds the partitions whose leader changes, first and in steps of their own, because they are unavailable.

    Leaders of the others may write concurrently, and a plan stops at the first step that conflicts.
    """
    steady = steady_epochs(image)
    others: list[tuple[TopicId, int, PartitionImage, PartitionRecord]] = []
    for topic in image.topics.values():
        if among is not None and topic.topic_id not in among:
            continue
        election = Election.UNCLEAN if elects_unclean(topic, settings) else Election.ONLINE
        least = min_insync_replicas(topic, settings)
        count = len(topic.partitions)
        numbers = range(count) if among is None else [number for number in among[topic.topic_id] if number < count]
        for number in numbers:
            partition = topic.partitions[number]
            if is_healthy(partition, steady):
                continue
            wanted = elect(image, topic.topic_id, number, partition, min_insync_replicas=least, election=election)
            if wanted is None:
                continue
            if wanted.leader != partition.leader:
                changes.add(topic.topic_id, number, partition, wanted)
            else:
                others.append((topic.topic_id, number, partition, wanted))
    changes.close_step()
    for change in others:
        changes.add(*change)


def _gather_preferred(changes: PartitionChanges, image: MetadataImage, settings: ControllerSettings) -> None:
    """Adds healthy partitions whose leader isn't the preferred one.

    The others get a leader first, and are checked again.
    """
    steady = steady_epochs(image)
    elected = 0
    for topic in image.topics.values():
        least = min_insync_replicas(topic, settings)
        for number, partition in enumerate(topic.partitions):
            if partition.leader in partition.replicas[:1] or not is_healthy(partition, steady):
                continue
            wanted = elect(
                image, topic.topic_id, number, partition, min_insync_replicas=least, election=Election.PREFERRED
            )
            if wanted is not None:
                changes.add(topic.topic_id, number, partition, wanted)
                elected += 1
                if elected == PREFERRED_ELECTIONS_MAX:
                    return


class ControllerWork:
    """Remembers which partitions the controller has to examine. Follows images; used from one event loop."""

    def __init__(self, broker_id: BrokerId, settings: Callable[[], ControllerSettings]) -> None:
        """`settings` is called for each use, because the configuration changes at run time."""
        self._broker_id = broker_id
        self._settings = settings
        self._all = True
        self._noted: dict[TopicId, Numbers] = {}
        self._rebalancing = False
        self._next_rebalance_ms: int | None = None

    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> bool:
        """Notes partitions that may need repair. Returns whether there is work.

        Broker changes concern all partitions. A changed partition is noted only if it isn't healthy now.
        """
        if new.controller_id != self._broker_id:
            self._all, self._next_rebalance_ms, self._rebalancing = True, None, False
            self._noted.clear()
            return False
        if delta.controller_changed or delta.brokers_changed or delta.broker_configs_changed:
            self._all = True
        if not self._all:
            self._note_topics(old, new, delta)
        return self.is_due or bool(new.stale_marks and delta.topics_changed)

    @property
    def is_due(self) -> bool:
        """Whether partitions are noted that no plan has found healthy since."""
        return self._all or self._rebalancing or bool(self._noted)

    def on_tick(self, image: MetadataImage, now_ms: int) -> bool:
        """Returns whether it is time to elect preferred leaders, and there are any to elect."""
        settings = self._settings()
        if image.controller_id != self._broker_id or not settings.rebalances:
            self._next_rebalance_ms = None
            return False
        if self._next_rebalance_ms is None or self._next_rebalance_ms > now_ms + settings.rebalance_interval_ms:
            self._next_rebalance_ms = now_ms + settings.rebalance_interval_ms
        if now_ms < self._next_rebalance_ms:
            return False
        self._next_rebalance_ms = now_ms + settings.rebalance_interval_ms
        partitions = (partition for topic in image.topics.values() for partition in topic.partitions)
        self._rebalancing = any(
            partition.is_known and partition.leader != partition.replicas[0] for partition in partitions
        )
        return self._rebalancing

    def plan(self, image: MetadataImage) -> ChangePlan:
        """Plans the noted work. An empty plan clears the notes."""
        among = None if self._all else self._noted
        plan = plan_controller_work(image, self._settings(), among=among, rebalance=self._rebalancing)
        if plan.is_empty:
            self._all = self._rebalancing = False
            self._noted.clear()
        return plan

    def _note_topics(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        steady = steady_epochs(new)
        for topic in delta.topics_created:
            self._note(topic, range(len(topic.partitions)), steady)
        for topic in delta.topics_changed:
            before = old.topics[topic.name]
            if before.configs.get(UNCLEAN_KEY) != topic.configs.get(UNCLEAN_KEY):
                self._note(topic, range(len(topic.partitions)), steady)
                continue
            self._note(topic, delta.partitions_of(before, topic), steady)

    def _note(self, topic: TopicImage, numbers: Iterable[int], steady: Mapping[BrokerId, int]) -> None:
        for number in numbers:
            if not is_healthy(topic.partitions[number], steady):
                self._noted.setdefault(topic.topic_id, {})[number] = None
