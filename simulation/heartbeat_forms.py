"""The heartbeats of consumer groups (KIP-848) and streams groups (KIP-1071), for members that otherwise work alike.

The topology of a streams group reads one topic, so the numbers of its tasks are those of the partitions.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from lowtide.protocol.messages.streams_group_heartbeat import (
    JOIN_EPOCH,
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsTaskIds,
)
from lowtide.runtime.random import Random
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


class MemberReport(NamedTuple):
    """What a member reports in a heartbeat."""

    group_id: str
    member_id: str
    epoch: int
    instance_id: str | None
    partitions: list[int] | None
    """What it has; None if that has not changed."""
    tells_all: bool


class HeartbeatForm(Protocol):
    """The requests and answers of one protocol."""

    api: str
    makes_id: bool
    """Whether the member makes its own id."""

    def change_subscription(self) -> None: ...

    def request(self, report: MemberReport) -> Any: ...

    def assigned(self, answer: Any) -> list[int] | None:
        """Returns the partitions that an answer assigns; None if they have not changed."""


class ConsumerForm:
    """The heartbeats of a consumer."""

    api = "ConsumerGroupHeartbeat"

    def __init__(self, load: OwnedGroup, random: Random) -> None:
        self._load = load
        self._uses_pattern = random.random() < 0.3  # noqa: PLR2004
        self.makes_id = random.random() < 0.8 or self._uses_pattern  # noqa: PLR2004
        self._assignor = random.choice((None, None, "uniform", "range"))

    def change_subscription(self) -> None:
        """Subscribes by a pattern instead of the name, or the other way round."""
        self._uses_pattern = self.makes_id and not self._uses_pattern

    def request(self, report: MemberReport) -> ConsumerGroupHeartbeatRequest:
        load = self._load
        topic_id, _ = load.topic_state()
        request = ConsumerGroupHeartbeatRequest(
            group_id=report.group_id,
            member_id=report.member_id,
            member_epoch=report.epoch,
            instance_id=report.instance_id,
        )
        if report.tells_all:
            request.rebalance_timeout_ms = load.rebalance_timeout_ms
            request.subscribed_topic_names = [] if self._uses_pattern else [load.topic]
            request.subscribed_topic_regex = (
                (f"{load.topic[:3]}.*" if self._uses_pattern else "") if self.makes_id else None
            )
            request.server_assignor = self._assignor
        if report.partitions is not None:
            rows = [HeartbeatTopicPartitions(topic_id=topic_id, partitions=report.partitions)]
            request.topic_partitions = rows if report.partitions else []
        return request

    def assigned(self, answer: Any) -> list[int] | None:
        if answer.assignment is None:
            return None
        topic_id, _ = self._load.topic_state()
        rows = answer.assignment.topic_partitions
        return [number for row in rows if row.topic_id == topic_id for number in row.partitions]


class StreamsForm:
    """The heartbeats of a thread of a Streams application, in one of two processes."""

    api = "StreamsGroupHeartbeat"
    makes_id = True

    def __init__(self, load: OwnedGroup, random: Random) -> None:
        self._load = load
        self._process_id = random.choice(("process one", "process two"))

    def change_subscription(self) -> None:
        """Changes nothing: all members run the same topology."""

    def request(self, report: MemberReport) -> StreamsGroupHeartbeatRequest:
        request = StreamsGroupHeartbeatRequest(
            group_id=report.group_id,
            member_id=report.member_id,
            member_epoch=report.epoch,
            endpoint_information_epoch=0,
            instance_id=report.instance_id,
        )
        if report.epoch == JOIN_EPOCH:
            row = HeartbeatSubtopology(
                subtopology_id=_SUBTOPOLOGY,
                source_topics=[self._load.topic],
                source_topic_regex=[],
                state_changelog_topics=[],
                repartition_sink_topics=[],
                repartition_source_topics=[],
                copartition_groups=[],
            )
            request.topology = HeartbeatTopology(epoch=0, subtopologies=[row])
        if report.tells_all:
            request.rebalance_timeout_ms = self._load.rebalance_timeout_ms
            request.process_id = self._process_id
            request.client_tags = []
        if report.partitions is not None:
            rows = [StreamsTaskIds(subtopology_id=_SUBTOPOLOGY, partitions=report.partitions)]
            request.active_tasks = rows if report.partitions else []
            request.standby_tasks, request.warmup_tasks = [], []
        return request

    def assigned(self, answer: Any) -> list[int] | None:
        if answer.active_tasks is None:
            return None
        return [number for row in answer.active_tasks for number in row.partitions]
