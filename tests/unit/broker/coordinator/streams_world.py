"""Streams groups in the world of `group_world`, with topics that a test creates."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.streams.heartbeat_checks import check_heartbeat
from lowtide.broker.coordinator.streams.streams_group import StreamsGroup
from lowtide.broker.coordinator.streams.streams_heartbeats import heartbeat_failed
from lowtide.broker.coordinator.streams.topology import InternalTopicSpec
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsTaskIds,
    StreamsTopicInfo,
)

from .consumer_world import HOST, Cluster
from .group_world import GROUP, Answer, World

QUICK = GroupSettings(
    initial_rebalance_delay_ms=0, streams_assignment_interval_ms=0, streams_initial_rebalance_delay_ms=0
)


def internal(name: str, partitions: int = 0) -> StreamsTopicInfo:
    return StreamsTopicInfo(name=name, partitions=partitions, replication_factor=0, topic_configs=[])


def subtopology(name: str, *sources: str, changelogs: tuple[str, ...] = ()) -> HeartbeatSubtopology:
    return HeartbeatSubtopology(
        subtopology_id=name,
        source_topics=list(sources),
        source_topic_regex=[],
        state_changelog_topics=[internal(each) for each in changelogs],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )


def topology(*rows: HeartbeatSubtopology, epoch: int = 0) -> HeartbeatTopology:
    return HeartbeatTopology(epoch=epoch, subtopologies=list(rows or (subtopology("0", "t"),)))


def tasks(numbers: Mapping[str, list[int]]) -> list[StreamsTaskIds]:
    return [StreamsTaskIds(subtopology_id=name, partitions=rows) for name, rows in numbers.items()]


class StreamsWorld(World):
    """A `World` with members of streams groups."""

    def __init__(self, settings: GroupSettings = QUICK, *, topics: Mapping[str, int] | None = None) -> None:
        self.cluster = Cluster(topics if topics is not None else {"t": 4})
        self.to_create: Mapping[str, InternalTopicSpec] = {}
        """The internal topics that are to be created for the last heartbeat."""
        super().__init__(settings)

    def make_groups(self, settings: GroupSettings, seed: int, topics: Any = None) -> Groups:
        return Groups(settings, random.Random(seed), topics=self.cluster.view)

    @property
    def group(self) -> StreamsGroup:
        group = self.groups.streams.find(GROUP)
        assert group is not None
        return group

    def beat(self, member_id: str, epoch: int, *, client_version: int = 1, **more: Any) -> Answer:
        """StreamsGroupHeartbeat. The answer's response is that of the client."""
        request = StreamsGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=epoch,
            endpoint_information_epoch=more.pop("endpoint_information_epoch", 0),
            **more,
        )
        answer, refusal = Answer(), check_heartbeat(request)
        if refusal is not None:
            answer.response = heartbeat_failed(refusal.error, refusal.message)
            return answer
        effects = self.effects()
        client = MemberClient("client", HOST, client_version, None)
        self.groups.streams_heartbeats.heartbeat(request, client, answer, effects)
        self.carry_out(effects)
        if answer.response is not None:
            self.to_create = answer.response.to_create
            answer.response = answer.response.response
        return answer

    def joining(self, member_id: str, **more: Any) -> Answer:
        """The first heartbeat of a member."""
        given = {"rebalance_timeout_ms": 60_000, "topology": topology(), "process_id": f"process-{member_id}"}
        given |= {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        return self.beat(member_id, 0, **(given | more))

    def enter(self, member_id: str, **more: Any) -> StreamsGroupHeartbeatResponse:
        answer = self.joining(member_id, **more)
        assert answer.error == ErrorCode.NONE, (answer.error, answer.response.error_message)
        response: StreamsGroupHeartbeatResponse = answer.response
        return response

    def report(self, member_id: str, **more: Any) -> StreamsGroupHeartbeatResponse:
        """A heartbeat in which a member reports exactly the tasks that it should have."""
        member = self.group.members[member_id]
        has = member.assigned
        active = {name: sorted(epochs) for name, epochs in has.active.items()}
        standby = {name: sorted(numbers) for name, numbers in has.standby.items()}
        answer = self.beat(
            member_id,
            member.member_epoch,
            **{"active_tasks": tasks(active), "standby_tasks": tasks(standby), "warmup_tasks": []} | more,
        )
        assert answer.error == ErrorCode.NONE, (answer.error, answer.response.error_message)
        response: StreamsGroupHeartbeatResponse = answer.response
        return response

    def settle(self) -> None:
        """All members heartbeat until nothing changes any more."""
        for _ in range(4):
            for member_id in list(self.group.members):
                self.report(member_id)

    def active(self, member_id: str, name: str = "0") -> set[int]:
        return set(self.group.members[member_id].assigned.active.get(name, ()))

    def check_reload(self) -> None:
        """A coordinator that loads the log has the same state."""
        other = self.reload()
        mine, loaded = self.group, other.groups.streams.find(GROUP)
        assert loaded is not None
        for name in (
            "group_epoch",
            "metadata_hash",
            "target_epoch",
            "targets",
            "members",
            "static_members",
            "validated_epoch",
            "assignment_configs",
            "assigned_wall_ms",
            "state",
        ):
            assert getattr(mine, name) == getattr(loaded, name), name
        assert mine.topology.record == loaded.topology.record
        assert mine.memory.held_bytes == loaded.memory.held_bytes
