"""Extends `group_world` with consumer groups, and with topics that a test creates, grows and deletes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.modern.consumer_heartbeats import check_heartbeat, heartbeat_failed
from lowtide.broker.coordinator.modern.modern_group import ModernGroup
from lowtide.broker.coordinator.modern.subscriptions import Subscriptions
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.consumer_protocol import encode_assignment
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from lowtide.protocol.types import TopicId

from .group_world import GROUP, REBALANCE_MS, Answer, World

PARTITION = PartitionImage(
    replicas=(1,), isr=(1,), isr_epochs=(1,), leader=1, leader_epoch=0, partition_epoch=0, modify_revision=1
)
HOST = "/host"


def topic_id(name: str, number: int = 0) -> TopicId:
    """The id of a topic; `number` is the number of earlier topics of this name."""
    return hashlib.md5(f"{name} {number}".encode(), usedforsecurity=False).digest()


def subscription(*topics: str, version: int = 3, owned: Mapping[str, list[int]] | None = None) -> bytes:
    """The subscription of a member of the classic protocol, encoded."""
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    start = version.to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"
    rows = encode_assignment(0, sorted((owned or {}).items()))[2:-4]
    if version < 1:
        return start
    return start + rows + (b"\xff\xff\xff\xff" if version >= 2 else b"") + (b"\xff\xff" if version >= 3 else b"")


class Cluster:
    """The topics that exist."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.image = MetadataImage(revision=1)
        self.view = TopicView(self)
        self._deleted: dict[str, int] = {}
        for name, count in topics.items():
            self.set_topic(name, count)

    def set_topic(self, name: str, count: int) -> None:
        """Creates a topic, adds partitions, or deletes it with 0."""
        old = self.image.topics.get(name)
        topics = {key: topic for key, topic in self.image.topics.items() if key != name}
        if count:
            number = topic_id(name, self._deleted.get(name, 0))
            topics[name] = TopicImage(
                name=name, topic_id=number, partitions=(PARTITION,) * count, configs={}, modify_revision=1
            )
        elif old is not None:
            self._deleted[name] = self._deleted.get(name, 0) + 1
        self.image = MetadataImage(
            revision=self.image.revision + 1,
            topics=topics,
            topic_names={topic.topic_id: name for name, topic in topics.items()},
        )
        made = (topics[name],) if name in topics and old is None else ()
        gone = (old,) if old is not None and not count else ()
        self.view.note_changes(ImageDelta(topics_created=made, topics_deleted=gone))


class ConsumerWorld(World):
    """A `World` with topics and members of consumer groups."""

    def __init__(
        self, settings: GroupSettings | None = None, *, topics: Mapping[str, int] | None = None, seed: int = 0
    ) -> None:
        self.cluster = Cluster(topics if topics is not None else {"t": 4})
        chosen = (
            settings
            if settings is not None
            else GroupSettings(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)
        )
        super().__init__(chosen, seed=seed)

    def make_groups(self, settings: GroupSettings, seed: int) -> Groups:  # type: ignore[override]
        return super().make_groups(settings, seed, self.cluster.view)

    @property
    def group(self) -> ConsumerGroup:
        group = self.groups.by_id[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    def ids(self, name: str = "t") -> TopicId:
        """The id of an existing topic."""
        return self.cluster.image.topics[name].topic_id

    def beat(self, member_id: str, epoch: int, *, version: int = 1, group: str = GROUP, **more: Any) -> Answer:
        """ConsumerGroupHeartbeat. `owned` are the partitions that the member reports, by the topic's name or id."""
        answer = Answer()
        owned = more.pop("owned", None)
        may_see = more.pop("may_see", None)
        rows = None
        if owned is not None:
            rows = [
                HeartbeatTopicPartitions(
                    topic_id=self.ids(key) if isinstance(key, str) else key, partitions=sorted(numbers)
                )
                for key, numbers in owned.items()
            ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch, topic_partitions=rows, **more
        )
        refusal = check_heartbeat(request, version, self.settings.consumer_assignors)
        if refusal is not None:
            answer.response = heartbeat_failed(refusal.error, refusal.message)
            return answer
        effects = self.effects()
        self.groups.heartbeats.heartbeat(request, MemberClient("client", HOST, version, may_see), answer, effects)
        self.carry_out(effects)
        return answer

    def enter(self, member_id: str, *topics: str, **more: Any) -> Any:
        """Joins with the new protocol. Returns the response."""
        names = list(topics or ("t",)) if "subscribed_topic_regex" not in more else None
        answer = self.beat(
            member_id, 0, owned={}, rebalance_timeout_ms=REBALANCE_MS, subscribed_topic_names=names, **more
        )
        assert answer.error == ErrorCode.NONE, (answer.error, answer.response.error_message)
        return answer.response

    def assigned(self, response: Any) -> dict[TopicId, set[int]] | None:
        """The assignment in a response."""
        if response.assignment is None:
            return None
        return {row.topic_id: set(row.partitions) for row in response.assignment.topic_partitions}

    def settle(self, *member_ids: str, rounds: int = 8) -> None:
        """Members heartbeat, applying their assignments at once, until nothing changes any more."""
        for _ in range(rounds):
            for member_id in member_ids:
                member = self.group.members[member_id]
                answer = self.beat(member_id, member.member_epoch, owned=dict(member.assigned))
                assert answer.error == ErrorCode.NONE, answer.error

    def check_reload(self) -> None:
        """A coordinator that loads the log has the same state."""
        other = self.reload()
        assert set(other.groups.by_id) >= set(self.groups.by_id)
        for group_id, group in self.groups.by_id.items():
            if not isinstance(group, ConsumerGroup):
                continue
            loaded = other.groups.by_id[group_id]
            assert isinstance(loaded, ConsumerGroup)
            for name in (*ModernGroup.__slots__, *ConsumerGroup.__slots__):
                if name not in ("checked_image", "members", "memory", "owners", "subscriptions"):
                    assert getattr(loaded, name) == getattr(group, name), name
            assert loaded.memory.held_bytes == group.memory.held_bytes
            assert loaded.owners.by_topic == group.owners.by_topic
            for name in Subscriptions.__slots__:
                assert getattr(loaded.subscriptions, name) == getattr(group.subscriptions, name), name
            assert loaded.members == group.members
