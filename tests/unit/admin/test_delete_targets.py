"""The targets of a delete are looked up once; in doubt nothing is deleted.

The cluster is scripted, the time virtual.
"""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.admin import Committed, DeletedRecords, DeleteStage, Timestamp, TopicPartition
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffsetsGroup,
    DescribeShareGroupOffsetsResponse,
)

from .scripted import HANG_UP, ScriptedBroker, ScriptedCluster, failure, simulated

P0 = TopicPartition("t", 0)
P1 = TopicPartition("t", 1)


def test_the_high_watermark_is_looked_up_once():
    """-1 means the high watermark at the first attempt: records that arrive between two attempts stay."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)

        def hangs_up_once(broker: ScriptedBroker, request: Any) -> Any:
            del cluster.scripts[1, ApiKey.DELETE_RECORDS]
            cluster.partition("t").high_watermark = 200
            return HANG_UP

        cluster.scripts[1, ApiKey.DELETE_RECORDS] = hangs_up_once
        async with cluster.client() as admin:
            assert await admin.delete_records({P0: -1}) == {P0: DeletedRecords(100, 100)}
        assert cluster.deletes() == [(1, {P0: 100})] * 2

    simulated(test)


@pytest.mark.parametrize(("ms", "offset"), [(0, 0), (1, 1), (400, 40), (401, 41), (990, 99), (991, 100), (5000, 100)])
def test_times_end_before_the_first_record_that_is_not_older(ms: int, offset: int):
    """Records have timestamps 0, 10, ... 990.

    A record at the time itself stays, and without such a record all are deleted.
    """

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        async with cluster.client() as admin:
            assert await admin.resolve_delete_targets({P0: Timestamp(ms)}) == {P0: offset}
        assert cluster.deletes() == []

    simulated(test)


def test_a_record_that_arrives_while_the_time_is_looked_up_stays():
    """No record was found, and then one arrived: the delete ends at the earlier log end."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)

        def grows(broker: ScriptedBroker, request: Any) -> Any:
            answer = cluster.list_offsets(broker.broker_id, request)
            if request.topics[0].partitions[0].timestamp == 995:
                cluster.partition("t").high_watermark = 150
                cluster.scripts[None, ApiKey.LIST_OFFSETS] = lambda broker, request: newest_stays_old(broker, request)
            return answer

        def newest_stays_old(broker: ScriptedBroker, request: Any) -> Any:
            answer = cluster.list_offsets(broker.broker_id, request)
            answer.topics[0].partitions[0].timestamp = 990
            return answer

        cluster.scripts[None, ApiKey.LIST_OFFSETS] = grows
        async with cluster.client() as admin:
            assert await admin.resolve_delete_targets({P0: Timestamp(995)}) == {P0: 100}

    simulated(test)


def test_a_time_that_is_doubtful_deletes_nothing():
    """An answer without a record of that time is not used if the largest timestamp is newer."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)

        def finds_nothing(broker: ScriptedBroker, request: Any) -> Any:
            answer = cluster.list_offsets(broker.broker_id, request)
            if request.topics[0].partitions[0].timestamp >= 0:
                answer.topics[0].partitions[0].offset = answer.topics[0].partitions[0].timestamp = -1
            return answer

        cluster.scripts[None, ApiKey.LIST_OFFSETS] = finds_nothing
        async with cluster.client() as admin:
            error = failure((await admin.delete_records({P0: Timestamp(400)}))[P0])
        assert error.stage is DeleteStage.RESOLVING
        assert error.leader_done is False
        assert cluster.deletes() == []

    simulated(test)


def test_a_time_needs_a_broker_that_can_confirm_it():
    """Before version 7 of ListOffsets an answer without a record cannot be checked."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.versions[ApiKey.LIST_OFFSETS] = 6
        async with cluster.client() as admin:
            results = await admin.resolve_delete_targets({P0: Timestamp(400)})
            assert results == {P0: 40}
            assert failure((await admin.delete_records({P0: Timestamp(5000)}))[P0]).stage is DeleteStage.RESOLVING
        assert cluster.deletes() == []

    simulated(test)


def test_groups_delete_what_all_of_them_have_consumed():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 2)
        cluster.committed = {"a": {P0: (30, 5), P1: (7, -1)}, "b": {P0: (20, 4)}}
        async with cluster.client() as admin:
            results = await admin.delete_records({P0: Committed(["a", "b"]), P1: Committed(["a", "b"])})
        assert results[P0] == DeletedRecords(20, 20)
        error = failure(results[P1])
        assert error.stage is DeleteStage.RESOLVING
        assert "group b has committed no" in str(error)
        assert cluster.partition("t", 1).log_start == 0

    simulated(test)


@pytest.mark.parametrize("knows_share_groups", [True, False])
def test_share_groups_count_with_where_they_start(knows_share_groups: bool):
    """Records before it are finished, and never delivered again (KIP-932).

    If brokers don't know share groups, there are none.
    """

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 2)
        cluster.committed = {"a": {P0: (30, 5), P1: (7, -1)}}
        cluster.shared = {"s": {P0: 20}}
        if not knows_share_groups:
            cluster.versions[ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = -1
        async with cluster.client() as admin:
            results = await admin.delete_records({P0: Committed(["a", "s"]), P1: Committed(["a", "s"])})
        if knows_share_groups:
            assert results[P0] == DeletedRecords(20, 20)
        else:
            assert "group s has committed no" in str(failure(results[P0]))
        assert "group s has committed no" in str(failure(results[P1]))
        assert cluster.partition("t", 1).log_start == 0

    simulated(test)


def test_an_answer_without_starts_takes_no_commit_back():
    """Kafka's, for a group of another kind."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1, 2)
        cluster.committed = {"a": {P0: (30, 5)}}
        empty = DescribedShareOffsetsGroup(group_id="a")
        cluster.scripts[None, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = lambda *_: DescribeShareGroupOffsetsResponse(
            groups=[empty]
        )
        async with cluster.client() as admin:
            results = await admin.delete_records({P0: Committed("a"), P1: Committed("a")})
        assert results[P0] == DeletedRecords(30, 30)
        assert "group a has committed no" in str(failure(results[P1]))

    simulated(test)


def test_a_share_group_that_can_not_be_asked_leaves_all_as_it_is():
    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        refused = DescribedShareOffsetsGroup(group_id="s", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        cluster.scripts[None, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS] = lambda *_: DescribeShareGroupOffsetsResponse(
            groups=[refused]
        )
        async with cluster.client() as admin:
            assert "GROUP_AUTHORIZATION_FAILED" in str(failure((await admin.delete_records({P0: Committed("s")}))[P0]))
        assert cluster.deletes() == []

    simulated(test)


def test_a_commit_for_a_topic_that_is_gone_is_not_used():
    """Its leader epoch is above the partition's: the topic was re-created since."""

    async def test(cluster: ScriptedCluster) -> None:
        cluster.add_topic("t", 1)
        cluster.committed = {"a": {P0: (30, 6)}}
        async with cluster.client() as admin:
            assert "leader epoch 6" in str((await admin.delete_records({P0: Committed("a")}))[P0])
        assert cluster.deletes() == []

    simulated(test)
