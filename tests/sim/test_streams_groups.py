"""Streams groups in a cluster: internal topics are created, a broker dies, members share tasks, a group is deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_groups import DeleteGroupsRequest
from lowtide.protocol.messages.list_groups import ListGroupsRequest
from lowtide.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from lowtide.protocol.messages.streams_group_heartbeat import (
    HeartbeatSubtopology,
    HeartbeatTopology,
    StreamsGroupHeartbeatRequest,
    StreamsKeyValue,
    StreamsStatus,
    StreamsTaskIds,
    StreamsTopicInfo,
)
from lowtide.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
)
from lowtide.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

from .share_cluster import GROUP, ShareCluster, simulate

NONE = ErrorCode.NONE
QUICK = {"group_streams_initial_rebalance_delay_ms": "0", "group_streams_assignment_interval_ms": "0"}


def internal(name: str, *configs: tuple[str, str], factor: int = 0) -> StreamsTopicInfo:
    rows = [StreamsKeyValue(key=key, value=value) for key, value in configs]
    return StreamsTopicInfo(name=name, partitions=0, replication_factor=factor, topic_configs=rows)


def topology(factor: int = 0) -> HeartbeatTopology:
    """A count by another key: `t` is read, repartitioned and counted."""
    repartition = internal("g-r-repartition", ("cleanup.policy", "delete"), factor=factor)
    changelog = internal("g-c-changelog", ("cleanup.policy", "compact"))
    rows = [
        HeartbeatSubtopology(
            subtopology_id=name,
            source_topics=["t"] if name == "0" else [],
            source_topic_regex=[],
            state_changelog_topics=[] if name == "0" else [changelog],
            repartition_sink_topics=[repartition.name] if name == "0" else [],
            repartition_source_topics=[] if name == "0" else [repartition],
            copartition_groups=[],
        )
        for name in ("0", "1")
    ]
    return HeartbeatTopology(epoch=0, subtopologies=rows)


class StreamsThread:
    """A member of the group `g`, which applies what it receives."""

    def __init__(self, cluster: ShareCluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.epoch = 0
        self.tasks: set[tuple[str, int]] = set()

    async def beat(self, factor: int = 0) -> Any:
        joins = not self.epoch
        owned = [StreamsTaskIds(subtopology_id=name, partitions=[number]) for name, number in sorted(self.tasks)]
        request = StreamsGroupHeartbeatRequest(
            group_id="g",
            member_id=self.name,
            member_epoch=self.epoch,
            endpoint_information_epoch=0,
            rebalance_timeout_ms=60_000 if joins else -1,
            topology=topology(factor) if joins else None,
            process_id=self.name if joins else None,
            active_tasks=owned,
            standby_tasks=[],
            warmup_tasks=[],
        )
        answer = await self.cluster.settled("g", GROUP, request, 1, lambda found: found.error_code)
        assert answer.error_code == NONE, answer
        self.epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks = {(row.subtopology_id, number) for row in answer.active_tasks for number in row.partitions}
        return answer


async def described(cluster: ShareCluster) -> Any:
    request = StreamsGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    return (await cluster.settled("g", GROUP, request, 1, lambda found: found.groups[0].error_code)).groups[0]


async def share(members: list[StreamsThread], count: int) -> None:
    """The members heartbeat until all tasks have one of them, and each has `count`."""
    while [len(member.tasks) for member in members] != [count] * len(members):
        for member in members:
            await member.beat()
        await asyncio.sleep(0.2)
    tasks = [task for member in members for task in member.tasks]
    assert sorted(tasks) == [("0", 0), ("0", 1), ("1", 0), ("1", 1)]


def test_a_group_lives_through_the_death_of_its_coordinator_and_is_deleted() -> None:
    async def run(cluster: ShareCluster) -> None:
        one, two = StreamsThread(cluster, "one"), StreamsThread(cluster, "two")
        first = await one.beat()
        assert [row.status_code for row in first.status] == [StreamsStatus.MISSING_INTERNAL_TOPICS]
        await share([one], 4)
        await share([one, two], 2)
        found = await described(cluster)
        assert (found.group_state, found.group_epoch, found.assignor_name) == (
            "Stable",
            found.assignment_epoch,
            "sticky",
        )
        assert [
            (row.subtopology_id, [(each.name, each.partitions) for each in row.repartition_source_topics])
            for row in found.topology.subtopologies
        ] == [("0", []), ("1", [("g-r-repartition", 2)])]
        coordinator = await cluster.coordinator("g", GROUP)
        listed = await cluster.clients[coordinator].request(
            ListGroupsRequest(types_filter=["streams"], states_filter=[]), 5
        )
        assert [(row.group_id, row.group_type, row.group_state, row.protocol_type) for row in listed.groups] == [
            ("g", "streams", "Stable", "streams")
        ]
        cluster.kill(coordinator)
        await cluster.coordinator("g", GROUP, but=coordinator)
        assert await described(cluster) == found, "a coordinator that takes over has loaded all of it"
        await share([one, two], 2)
        delete = DeleteGroupsRequest(groups_names=["g"])

        async def deleted() -> int:
            answer = await cluster.settled("g", GROUP, delete, 2, lambda got: got.results[0].error_code)
            code: int = answer.results[0].error_code
            return code

        assert await deleted() == ErrorCode.NON_EMPTY_GROUP
        for member in (one, two):
            member.epoch = -1
            await member.beat()
        assert (await described(cluster)).group_state == "Empty"
        assert await deleted() == NONE
        assert (await described(cluster)).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    simulate(run, **QUICK)


def test_members_learn_why_an_internal_topic_can_not_be_created() -> None:
    """There are three brokers: a topic with seven replicas is impossible. The other topic is created."""

    async def run(cluster: ShareCluster) -> None:
        member = StreamsThread(cluster, "one")
        while True:
            (status,) = (await member.beat(factor=7)).status
            assert status.status_code == StreamsStatus.MISSING_INTERNAL_TOPICS
            if "g-c-changelog" not in status.status_detail:
                break
            await asyncio.sleep(0.2)
        assert "; Creation failed: g-r-repartition (" in status.status_detail
        assert not member.tasks
        assert (await described(cluster)).group_state == "NotReady"

    simulate(run, **QUICK)


def test_streams_groups_can_be_switched_off() -> None:
    """By the level of `streams.version`; descriptions of topologies are refused in any case."""

    async def run(cluster: ShareCluster) -> None:
        client = cluster.clients[await cluster.coordinator("g", GROUP)]
        description = TopologyDescription(subtopologies=[], global_stores=[])
        update = StreamsGroupTopologyDescriptionUpdateRequest(
            group_id="g", member_id="one", topology_epoch=0, topology_description=description
        )
        refused = await client.request(update, 0)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.UNSUPPORTED_VERSION,
            "The broker has no streams group topology description plugin configured.",
        )
        off = FeatureUpdateKey(feature="streams.version", max_version_level=0, upgrade_type=2)
        for each in cluster.clients.values():
            answer = await each.request(
                UpdateFeaturesRequest(timeout_ms=1_000, feature_updates=[off], validate_only=False), 1
            )
            if answer.error_code == NONE:
                break
        await asyncio.sleep(1)
        beat = StreamsGroupHeartbeatRequest(
            group_id="g", member_id="one", member_epoch=0, endpoint_information_epoch=0, rebalance_timeout_ms=1
        )
        assert (await client.request(beat, 1)).error_code == ErrorCode.UNSUPPORTED_VERSION
        ask = StreamsGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
        rows = (await client.request(ask, 1)).groups
        assert [(row.group_id, row.error_code) for row in rows] == [("g", ErrorCode.UNSUPPORTED_VERSION)]

    simulate(run)
