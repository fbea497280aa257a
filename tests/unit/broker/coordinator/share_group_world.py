"""Share groups in the world of `group_world`, with topics that a test creates, and states that it initializes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.share_group import ShareGroup
from lowtide.broker.coordinator.modern.share_group_states import Starts
from lowtide.broker.coordinator.modern.share_heartbeats import check_heartbeat, heartbeat_failed
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.protocol.types import TopicId

from .consumer_world import HOST, Cluster
from .group_world import GROUP, Answer, World


class ShareGroupWorld(World):
    """A `World` with members of share groups. States begin at once, unless `begins` is False."""

    def __init__(
        self, settings: GroupSettings | None = None, *, topics: Mapping[str, int] | None = None, seed: int = 0
    ) -> None:
        self.cluster = Cluster(topics if topics is not None else {"t": 4})
        self.begins = True
        self.asked: list[tuple[str, int, dict[TopicId, list[int]]]] = []
        self.starts: list[Starts] = []
        super().__init__(settings if settings is not None else GroupSettings(share_assignment_interval_ms=0), seed=seed)

    def make_groups(self, settings: GroupSettings, seed: int, topics: Any = None) -> Groups:
        return Groups(settings, random.Random(seed), topics=self.cluster.view, states=self)

    def initialize(self, group_id: str, state_epoch: int, wanted: Starts) -> None:
        """What the share coordinator is asked for."""
        self.starts.append(wanted)
        self.asked.append((group_id, state_epoch, {topic_id: sorted(numbers) for topic_id, numbers in wanted.items()}))
        if self.begins:
            self.begin()

    def begin(self) -> None:
        """The share coordinator has done what it was asked for last."""
        group_id, _, wanted = self.asked[-1]
        effects = self.effects()
        self.groups.shares.states.on_initialized(group_id, wanted, effects)
        self.carry_out(effects)

    @property
    def group(self) -> ShareGroup:
        group = self.groups.by_id.find_share(GROUP)
        assert group is not None
        return group

    def ids(self, name: str = "t") -> TopicId:
        return self.cluster.image.topics[name].topic_id

    def beat(self, member_id: str, epoch: int, *names: str, group: str = GROUP, **more: Any) -> Answer:
        """ShareGroupHeartbeat; without names the subscription is as before."""
        answer = Answer()
        topics = list(names) or None
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id=member_id, member_epoch=epoch, subscribed_topic_names=topics, **more
        )
        refusal = check_heartbeat(request)
        if refusal is not None:
            answer.response = heartbeat_failed(refusal.error, refusal.message)
            return answer
        effects = self.effects()
        self.groups.share_heartbeats.heartbeat(request, MemberClient("client", HOST, 1, None), answer, effects)
        self.carry_out(effects)
        return answer

    def enter(self, member_id: str, *names: str) -> Any:
        answer = self.beat(member_id, 0, *(names or ("t",)))
        assert answer.error == ErrorCode.NONE, (answer.error, answer.response.error_message)
        return answer.response

    def settle(self) -> None:
        """All members heartbeat until nothing changes any more."""
        for _ in range(4):
            for member_id, member in list(self.group.members.items()):
                assert self.beat(member_id, member.member_epoch).error == ErrorCode.NONE

    def assigned(self, member_id: str, name: str = "t") -> set[int]:
        return set(self.group.members[member_id].assigned.get(self.ids(name), ()))

    def check_reload(self) -> None:
        """A coordinator that loads the log has the same state."""
        other = self.reload()
        for group_id in self.groups.by_id:
            mine, loaded = self.groups.by_id.find_share(group_id), other.groups.by_id.find_share(group_id)
            assert mine is not None
            assert loaded is not None
            for name in (
                "group_epoch",
                "metadata_hash",
                "target_epoch",
                "targets",
                "members",
                "states",
                "state",
            ):
                assert getattr(mine, name) == getattr(loaded, name), name
            assert mine.memory.held_bytes == loaded.memory.held_bytes
            assert mine.subscriptions.topic_counts == loaded.subscriptions.topic_counts
        assert set(other.groups.by_id) == set(self.groups.by_id)
