"""A member of a streams group (KIP-1071) whose topology reads one topic, so that task and partition numbers are equal.

It works like a member of a consumer group (`consumer_member`), with the heartbeats of streams groups. Members of one
group are spread over two processes.
"""

from __future__ import annotations

from typing import Any, Final

from lowtide.protocol.messages.streams_group_heartbeat import (
    JOIN_EPOCH,
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsTaskIds,
)
from lowtide.runtime.random import Random
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.consumer_member import ConsumerMember
from lowtide.simulation.owning_member import SESSION_TIMEOUT_MS, OwnedGroup

STREAMS_GROUP_SETTINGS: Final = {
    "group.streams.min.session.timeout.ms": "500",
    "group.streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.assignment.interval.ms": "200",
    "group.streams.initial.rebalance.delay.ms": "200",
}

_SUBTOPOLOGY: Final = "0"


class TaskMember(ConsumerMember):
    """A member of a streams group."""

    api = "StreamsGroupHeartbeat"

    def __init__(self, load: OwnedGroup, client: ClusterClient, random: Random, instance: str | None) -> None:
        super().__init__(load, client, random, instance)
        self._makes_id = True
        self._process_id = random.choice(("process one", "process two"))

    def _subscribe_otherwise(self) -> None:
        """All members run the same topology. It sends all fields again."""
        self._tells_all = True

    def _request(self, *, joins: bool) -> Any:
        load = self.load
        tells_all = joins or self._tells_all or self.random.random() < 0.3  # noqa: PLR2004
        request = StreamsGroupHeartbeatRequest(
            group_id=self.key,
            member_id=self._member_id,
            member_epoch=JOIN_EPOCH if joins else self.generation_id,
            endpoint_information_epoch=0,
            instance_id=self._instance,
        )
        if joins:
            row = HeartbeatSubtopology(
                subtopology_id=_SUBTOPOLOGY,
                source_topics=[load.topic],
                source_topic_regex=[],
                state_changelog_topics=[],
                repartition_sink_topics=[],
                repartition_source_topics=[],
                copartition_groups=[],
            )
            request.topology = HeartbeatTopology(epoch=0, subtopologies=[row])
        if tells_all:
            request.rebalance_timeout_ms = load.rebalance_timeout_ms
            request.process_id = self._process_id
            request.client_tags = []
            self._tells_all = False
        if tells_all or sorted(self._assigned) == sorted(self.partitions):
            rows = [StreamsTaskIds(subtopology_id=_SUBTOPOLOGY, partitions=self.partitions)] if self.partitions else []
            request.active_tasks, request.standby_tasks, request.warmup_tasks = rows, [], []
        return request

    def _assigned_in(self, answer: Any) -> list[int] | None:
        if answer.active_tasks is None:
            return None
        return [number for row in answer.active_tasks for number in row.partitions]

    def _leaving(self, epoch: int) -> Any:
        return StreamsGroupHeartbeatRequest(
            group_id=self.key,
            member_id=self._member_id,
            member_epoch=epoch,
            endpoint_information_epoch=0,
            instance_id=self._instance,
        )
