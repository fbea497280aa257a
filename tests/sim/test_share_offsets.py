"""An administrator describes, sets and deletes the offsets of a share group without members."""

from __future__ import annotations

from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from lowtide.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareOffsetsTopic
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
    DescribeShareOffsetsTopic,
)

from .share_cluster import GROUP, ShareCluster, simulate
from .test_share_groups import SEVERAL, Member
from .test_share_states import Leader

NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def described(cluster: ShareCluster, *topics: tuple[str, list[int]]) -> Any:
    rows = [DescribeShareOffsetsTopic(topic_name=name, partitions=numbers) for name, numbers in topics] or None
    request = DescribeShareGroupOffsetsRequest(groups=[DescribeShareOffsetsGroup(group_id="g", topics=rows)])
    return (await cluster.settled("g", GROUP, request, 1, lambda found: found.groups[0].error_code)).groups[0]


def starts(group: Any) -> dict[str, dict[int, int]]:
    return {
        topic.topic_name: {row.partition_index: row.start_offset for row in topic.partitions} for topic in group.topics
    }


async def alter(cluster: ShareCluster, **topics: dict[int, int]) -> Any:
    rows = [
        AlterShareOffsetsTopic(
            topic_name=name,
            partitions=[
                AlterShareOffsetsPartition(partition_index=number, start_offset=start)
                for number, start in wanted.items()
            ],
        )
        for name, wanted in topics.items()
    ]
    request = AlterShareGroupOffsetsRequest(group_id="g", topics=rows)
    return await cluster.settled("g", GROUP, request, 0, lambda found: found.error_code)


async def delete(cluster: ShareCluster, *topics: str) -> Any:
    request = DeleteShareGroupOffsetsRequest(
        group_id="g", topics=[DeleteShareOffsetsTopic(topic_name=name) for name in topics]
    )
    return await cluster.settled("g", GROUP, request, 0, lambda found: found.error_code)


def test_offsets_of_a_group() -> None:
    async def run(cluster: ShareCluster) -> None:
        unknown = await described(cluster, ("t", [0]))
        assert (unknown.error_code, starts(unknown)) == (NONE, {"t": {0: -1}})
        refused = await delete(cluster, "t")
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a share group.",
        )
        member, leader = Member(cluster, "one"), Leader(cluster)
        await member.until({0, 1})
        assert starts(await described(cluster)) == {"t": {0: -1, 1: -1}}
        read = await leader.read(0)
        assert (await leader.write_in(read.state_epoch, 0, 9)).error_code == NONE
        found = await described(cluster, ("t", [0, 7]), ("none", [0]))
        assert starts(found) == {"t": {0: 0, 7: -1}, "none": {0: -1}}
        assert [row.error_code for row in found.topics[0].partitions] == [NONE, UNKNOWN]
        for refused in (await alter(cluster, t={0: 5}), await delete(cluster, "t")):
            assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
            assert refused.error_message == "Share group g has members. All of them have to leave first."

        member.epoch = -1
        await member.beat()
        altered = await alter(cluster, t={0: 5, 9: 1}, none={0: 0})
        rows = {
            topic.topic_name: {row.partition_index: row.error_code for row in topic.partitions}
            for topic in altered.responses
        }
        assert rows == {"t": {0: NONE, 9: UNKNOWN}, "none": {0: UNKNOWN}}
        messages = [row.error_message for topic in altered.responses for row in topic.partitions]
        assert messages == [None, "There is no partition t-9.", "There is no partition none-0."]
        assert starts(await described(cluster)) == {"t": {0: 5, 1: -1}}
        assert (await leader.write_in(read.state_epoch, 10, 19)).error_code == ErrorCode.FENCED_STATE_EPOCH
        again = await leader.read(0)
        assert (again.start_offset, again.state_batches) == (5, [])
        assert again.state_epoch > read.state_epoch

        first = await cluster.coordinator("g", GROUP)
        cluster.kill(first)
        await cluster.coordinator("g", GROUP, but=first)
        assert starts(await described(cluster)) == {"t": {0: 5, 1: -1}}
        deleted = await delete(cluster, "t", "none")
        assert {row.topic_name: row.error_code for row in deleted.responses} == {"t": NONE, "none": UNKNOWN}
        assert [row.error_message for row in deleted.responses] == [None, "Share group g has no offsets of topic none."]
        assert (await described(cluster)).topics == []
        assert {row.topic_name: row.error_code for row in (await delete(cluster, "t")).responses} == {"t": UNKNOWN}
        other = Member(cluster, "two")
        await other.until({0, 1})
        assert starts(await described(cluster)) == {"t": {0: -1, 1: -1}}, "from the beginning"

    simulate(run, **SEVERAL)


def test_a_group_is_created_with_where_it_starts() -> None:
    """franz-go's tests expect this; an unknown topic creates no group.

    The group survives its coordinator, and members continue from these offsets.
    """

    async def run(cluster: ShareCluster) -> None:
        unknown = await alter(cluster, none={0: 1})
        assert (unknown.error_code, unknown.responses[0].partitions[0].error_code) == (NONE, UNKNOWN)
        assert starts(await described(cluster)) == {}
        altered = await alter(cluster, t={0: 5})
        assert (altered.error_code, altered.responses[0].partitions[0].error_code) == (NONE, NONE)
        assert starts(await described(cluster)) == {"t": {0: 5}}
        first = await cluster.coordinator("g", GROUP)
        cluster.kill(first)
        await cluster.coordinator("g", GROUP, but=first)
        assert starts(await described(cluster)) == {"t": {0: 5}}
        member, leader = Member(cluster, "one"), Leader(cluster)
        await member.until({0, 1})
        assert (await leader.read(0)).start_offset == 5
        assert starts(await described(cluster)) == {"t": {0: 5, 1: -1}}

    simulate(run, **SEVERAL)


def test_the_lag_where_the_coordinator_leads_the_partition() -> None:
    """The lag is unknown before a leader has chosen the start offset."""

    async def run(cluster: ShareCluster) -> None:
        member, leader = Member(cluster, "one"), Leader(cluster)
        await member.until({0, 1})
        coordinator = await cluster.coordinator("g", GROUP)
        read = await leader.read(0)
        assert (await leader.write_in(read.state_epoch, 0, 0)).error_code == NONE
        lags = {row.partition_index: row.lag for topic in (await described(cluster)).topics for row in topic.partitions}
        image = cluster.machines[coordinator - 1].broker.serving.coordinators.groups.broker.metadata.image
        leads = image.topics["t"].partitions[0].leader == coordinator
        assert lags == {0: 0 if leads else -1, 1: -1}

    simulate(run, **SEVERAL)
