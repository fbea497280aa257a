"""Share groups in a cluster: states begin, a broker dies, members keep partitions, a group is deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_groups import DeleteGroupsRequest
from lowtide.protocol.messages.list_groups import ListGroupsRequest
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    SummaryStatePartition,
    SummaryStateTopic,
)
from lowtide.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

from .share_cluster import GROUP, SHARE, ShareCluster, simulate
from .test_share_states import Leader

NONE = ErrorCode.NONE
SEVERAL = {"share_coordinator_state_topic_num_partitions": "5"}


class Member:
    """A member of the group `g`, which applies what it receives."""

    def __init__(self, cluster: ShareCluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.epoch = 0
        self.partitions: set[int] = set()

    async def beat(self) -> Any:
        topics = ["t"] if not self.epoch else None
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id=self.name, member_epoch=self.epoch, subscribed_topic_names=topics
        )
        answer = await self.cluster.settled("g", GROUP, request, 1, lambda found: found.error_code)
        assert answer.error_code == NONE, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.partitions = {number for row in answer.assignment.topic_partitions for number in row.partitions}
        return answer

    async def until(self, partitions: set[int]) -> None:
        while self.partitions != partitions:
            await self.beat()
            await asyncio.sleep(0.2)


async def described(cluster: ShareCluster) -> Any:
    request = ShareGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    return (await cluster.settled("g", GROUP, request, 1, lambda found: found.groups[0].error_code)).groups[0]


async def begun(cluster: ShareCluster) -> int:
    """Returns the epoch in which the state of partition 0 has begun; 0 if it hasn't."""
    topics = [
        SummaryStateTopic(topic_id=cluster.topic_id, partitions=[SummaryStatePartition(partition=0, leader_epoch=-1)])
    ]
    request = ReadShareGroupStateSummaryRequest(group_id="g", topics=topics)
    answer = await cluster.settled(
        Leader(cluster).key, SHARE, request, 0, lambda found: found.results[0].partitions[0].error_code
    )
    epoch: int = answer.results[0].partitions[0].state_epoch
    return epoch


def test_a_group_lives_through_the_death_of_its_coordinator_and_is_deleted() -> None:
    async def run(cluster: ShareCluster) -> None:
        one, two = Member(cluster, "one"), Member(cluster, "two")
        await one.until({0, 1})
        assert await begun(cluster) == 2
        await two.beat()
        while len(one.partitions) != 1 or len(two.partitions) != 1:
            await one.beat()
            await two.beat()
            await asyncio.sleep(0.2)
        assert one.partitions | two.partitions == {0, 1}
        found = await described(cluster)
        assert (found.group_state, found.assignor_name, found.group_epoch) == (
            "Stable",
            "simple",
            found.assignment_epoch,
        )
        assert [(member.member_id, member.subscribed_topic_names) for member in found.members] == [
            ("one", ["t"]),
            ("two", ["t"]),
        ]
        first = await cluster.coordinator("g", GROUP)
        listed = await cluster.clients[first].request(ListGroupsRequest(types_filter=["share"], states_filter=[]), 5)
        assert [(row.group_id, row.group_type, row.group_state, row.protocol_type) for row in listed.groups] == [
            ("g", "share", "Stable", "share")
        ]
        cluster.kill(first)
        await cluster.coordinator("g", GROUP, but=first)
        assert await described(cluster) == found, "a coordinator that takes over has loaded all of it"
        two.epoch = -1
        await two.beat()
        await one.until({0, 1})
        request = DeleteGroupsRequest(groups_names=["g"])
        assert (await cluster.settled("g", GROUP, request, 2, lambda got: got.results[0].error_code)).results[
            0
        ].error_code == (ErrorCode.NON_EMPTY_GROUP)
        one.epoch = -1
        await one.beat()
        assert (await described(cluster)).group_state == "Empty"
        assert (await cluster.settled("g", GROUP, request, 2, lambda got: got.results[0].error_code)).results[
            0
        ].error_code == NONE
        assert await begun(cluster) == 0
        assert (await described(cluster)).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    simulate(run, **SEVERAL)
