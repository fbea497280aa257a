"""The effects of a share group's configuration, its topic and the cluster's features."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from lowtide.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from lowtide.protocol.messages.describe_consumed_offsets import ConsumedOffsetsTopic, DescribeConsumedOffsetsRequest
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

from .share_cluster import GROUP, ShareCluster, simulate
from .share_member import ACCEPT, ShareMember, acquired, leader_of, produce, values

NONE = ErrorCode.NONE
GROUP_RESOURCE = 32
TRANSACTION = 1
RENEW = 4
RECORD_LIMIT = 1
OLD_MS = 1_000_000_000_000


async def set_on_group(cluster: ShareCluster, key: str, value: str) -> None:
    configs = [AlterableConfig(name=key, config_operation=0, value=value)]
    rows = [AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name="g", configs=configs)]
    answer = await cluster.clients[1].request(IncrementalAlterConfigsRequest(resources=rows, validate_only=False), 1)
    assert answer.responses[0].error_code == NONE, answer


async def write(cluster: ShareCluster, records: Sequence[tuple[int, bytes]], **batch: Any) -> None:
    """One batch in partition 0: times and values."""
    made = build_batch([(time_ms, None, value, ()) for time_ms, value in records], **batch)
    rows = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=made)])]
    name = "x" if batch else None
    request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=rows)
    answer = await cluster.clients[await leader_of(cluster, 0)].request(request, 12)
    assert answer.responses[0].partition_responses[0].error_code == NONE, answer


async def delete(cluster: ShareCluster, offset: int) -> None:
    rows = [DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])]
    client = cluster.clients[await leader_of(cluster, 0)]
    answer = await client.request(DeleteRecordsRequest(topics=rows, timeout_ms=10_000), 2)
    assert answer.topics[0].partitions[0].error_code == NONE


def test_a_delete_moves_the_start_of_a_share_partition() -> None:
    """Deleted records aren't delivered again, nor by the next leader; acknowledging them does nothing."""

    async def run(cluster: ShareCluster) -> None:
        one, two = ShareMember(cluster, "one"), ShareMember(cluster, "two")
        await one.join()
        await one.fetch()
        for number in range(4):
            await produce(cluster, 0, [b"%d" % number])
        assert acquired(await one.row())[0][0] == 0
        await delete(cluster, 3)
        row = (await one.acknowledge((0, 1, ACCEPT))).responses[0].partitions[0]
        assert row.error_code == NONE
        cluster.kill(one.leader)
        row = await two.row()
        assert (acquired(row), values(row)) == ([(3, 3, 1)], [b"3"])

    simulate(run)


def test_what_a_share_group_has_consumed_counts_for_deletes() -> None:
    """KIP-68: up to its start, with members or without; while that isn't known it keeps the partition."""

    async def run(cluster: ShareCluster) -> None:
        one = ShareMember(cluster, "one")
        topic = ConsumedOffsetsTopic(name="t", topic_id=cluster.topic_id, partitions=[0])

        async def consumed() -> tuple[int, str | None]:
            request = DescribeConsumedOffsetsRequest(topics=[topic])
            row = (
                (await cluster.settled("g", GROUP, request, 1, lambda found: found.error_code)).topics[0].partitions[0]
            )
            return row.consumed_offset, row.group_id

        assert await consumed() == (-1, None)
        await one.join()
        assert await consumed() == (-1, "g")
        await one.fetch()
        await produce(cluster, 0, [b"%d" % number for number in range(10)])
        assert acquired(await one.row()) == [(0, 9, 1)]
        assert await consumed() == (0, "g")
        assert (await one.acknowledge((0, 3, ACCEPT), (6, 9, ACCEPT))).responses[0].partitions[0].error_code == NONE
        assert await consumed() == (4, "g"), "4 and 5 are out"
        one.member.epoch = -1
        await one.member.beat()
        assert await consumed() == (4, "g"), "without members"

    simulate(run)


def test_records_of_transactions_that_are_aborted() -> None:
    """`read_committed`: not delivered, and those of an open one not yet."""

    async def run(cluster: ShareCluster) -> None:
        await set_on_group(cluster, "share.isolation.level", "read_committed")
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        begin = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        answer = await cluster.settled("x", TRANSACTION, begin, 4, lambda found: found.error_code)
        identity = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        await write(cluster, [(OLD_MS, b"aborted")], base_sequence=0, is_transactional=True, **identity)
        assert (await one.fetch()).responses == [], "it is open"
        end = EndTxnRequest(transactional_id="x", committed=False, **identity)
        ended = await cluster.settled("x", TRANSACTION, end, 5, lambda found: found.error_code)
        assert ended.error_code == NONE
        identity = {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
        await write(cluster, [(OLD_MS, b"committed")], base_sequence=0, is_transactional=True, **identity)
        end = EndTxnRequest(transactional_id="x", committed=True, **identity)
        assert (await cluster.settled("x", TRANSACTION, end, 5, lambda found: found.error_code)).error_code == NONE
        row = await one.row()
        assert (acquired(row), values(row)) == ([(2, 2, 1)], [b"committed"]), "offset 1 is a marker"

    simulate(run, transaction_state_log_num_partitions="1")


def test_a_group_begins_with_records_that_are_no_older() -> None:
    """KIP-1106."""

    async def run(cluster: ShareCluster) -> None:
        await write(cluster, [(OLD_MS, b"old")])
        now_ms = cluster.machines[0].clock.wall_ms()
        await write(cluster, [(now_ms, b"new")])
        await set_on_group(cluster, "share.auto.offset.reset", "by_duration:P1D")
        one = ShareMember(cluster, "one")
        await one.join()
        row = await one.row()
        assert (acquired(row), values(row)) == ([(1, 1, 1)], [b"new"])

    simulate(run)


def test_what_is_written_to_added_partitions_before_the_group_notices_is_delivered() -> None:
    """With `latest`, which passes over what was in the first partitions before the group."""

    async def run(cluster: ShareCluster) -> None:
        await produce(cluster, 0, [b"before"])
        one, two = ShareMember(cluster, "one"), ShareMember(cluster, "two", partition=2)
        await one.join()
        await one.fetch()
        topics = [CreatePartitionsTopic(name="t", count=3, assignments=None)]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=10_000, validate_only=False)
        answer = await cluster.clients[1].request(request, 3)
        assert answer.results[0].error_code == NONE
        await produce(cluster, 2, [b"early"])
        await asyncio.sleep(10)
        await one.join({0, 1, 2})
        row = await two.row()
        assert (acquired(row), values(row)) == ([(0, 0, 1)], [b"early"])
        await produce(cluster, 0, [b"after"])
        row = await one.row()
        assert (acquired(row), values(row)) == ([(1, 1, 1)], [b"after"])

    simulate(run)


def test_a_strict_limit_cuts_batches() -> None:
    """KIP-1206. Without it the member gets the whole batch."""

    async def run(cluster: ShareCluster) -> None:
        one, two = ShareMember(cluster, "one"), ShareMember(cluster, "two")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"%d" % number for number in range(10)])
        assert acquired(await one.row(max_records=3, share_acquire_mode=RECORD_LIMIT)) == [(0, 2, 1)]
        assert acquired(await two.row(max_records=3)) == [(3, 9, 1)]

    simulate(run)


def test_a_member_that_asks_for_more_time_keeps_its_records() -> None:
    """KIP-1222: beyond the time of the lock, as long as it asks."""

    async def run(cluster: ShareCluster) -> None:
        one, two = ShareMember(cluster, "one"), ShareMember(cluster, "two")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"a"])
        assert acquired(await one.row()) == [(0, 0, 1)]
        begun = asyncio.get_running_loop().time()
        nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_records": 0, "max_bytes": 0}
        while asyncio.get_running_loop().time() < begun + 70:
            row = await one.row((0, 0, RENEW), is_renew_ack=True, **nothing)
            assert (row.acknowledge_error_code, acquired(row)) == (NONE, [])
            assert (await two.fetch(max_wait_ms=20_000)).responses == []
        assert acquired(await two.row()) == [(0, 0, 2)], "it has stopped to ask"

    simulate(run)


def test_a_group_that_may_not_ask_for_more_time_may_still_acknowledge() -> None:
    """KIP-1240. As in Kafka only the partitions that ask are refused, and the session continues."""

    async def run(cluster: ShareCluster) -> None:
        await set_on_group(cluster, "share.renew.acknowledge.enable", "false")
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"a", b"b"])
        assert acquired(await one.row()) == [(0, 1, 1)]
        nothing = {"max_wait_ms": 0, "min_bytes": 0, "max_records": 0, "max_bytes": 0}
        row = await one.row((0, 0, RENEW), (1, 1, ACCEPT), is_renew_ack=True, **nothing)
        assert row.acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
        row = await one.row((0, 1, ACCEPT), is_renew_ack=True, **nothing)
        assert row.acknowledge_error_code == NONE

    simulate(run)


def test_a_limit_that_was_raised_holds_for_what_members_have() -> None:
    async def run(cluster: ShareCluster) -> None:
        await set_on_group(cluster, "share.delivery.count.limit", "2")
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"a"])
        assert [acquired(await one.row()) for _ in range(2)] == [[(0, 0, 1)], [(0, 0, 2)]]
        await set_on_group(cluster, "share.delivery.count.limit", "3")
        assert acquired(await one.row()) == [(0, 0, 3)]

    simulate(run)


async def set_share_version(cluster: ShareCluster, level: int) -> None:
    """Sets the level of the feature, which may be lower than before."""
    for kind in (1, 2):
        update = FeatureUpdateKey(feature="share.version", max_version_level=level, upgrade_type=kind)
        for client in cluster.clients.values():
            answer = await client.request(UpdateFeaturesRequest(feature_updates=[update]), 1)
            if answer.error_code == NONE:
                return
    raise AssertionError(answer)


def test_without_the_feature_members_are_refused() -> None:
    """Refused at `share.version` 0. From 1 on they are served again, with the stored states."""

    async def run(cluster: ShareCluster) -> None:
        one = ShareMember(cluster, "one")
        await one.join()
        await one.fetch()
        await produce(cluster, 0, [b"a", b"b"])
        await one.row()
        assert (await one.acknowledge((0, 0, ACCEPT))).responses[0].partitions[0].error_code == NONE
        await set_share_version(cluster, 0)
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id="new", member_epoch=0, subscribed_topic_names=["t"]
        )
        while (
            await cluster.settled("g", GROUP, request, 1, lambda found: found.error_code)
        ).error_code != ErrorCode.UNSUPPORTED_VERSION:
            await asyncio.sleep(0.1)
        while (await one.fetch(max_wait_ms=0)).error_code != ErrorCode.UNSUPPORTED_VERSION:
            await asyncio.sleep(0.1)
        assert (await one.acknowledge((1, 1, ACCEPT))).error_code == ErrorCode.UNSUPPORTED_VERSION
        await set_share_version(cluster, 1)
        while (await one.fetch(max_wait_ms=0)).error_code == ErrorCode.UNSUPPORTED_VERSION:
            await asyncio.sleep(0.1)
        assert (await one.acknowledge((1, 1, ACCEPT))).responses[0].partitions[0].error_code == NONE

    simulate(run)
