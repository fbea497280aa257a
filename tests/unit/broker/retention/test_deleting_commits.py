"""Decides whose commits delete records with retention by consumption (KIP-68), on whole brokers with an authorizer.

READ on a topic and on an own group is no right to delete. There are two segments, and a group commits their end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.admin.retained import sentence
from lowtide.broker.authorizer.resources import Operation, ResourceType
from lowtide.broker.security.principal import ANONYMOUS, parse_principal
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.describe_retention import DescribeRetentionRequest, DescribeRetentionTopic
from lowtide.protocol.messages.end_txn import EndTxnRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.protocol.messages.init_producer_id import InitProducerIdRequest
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from lowtide.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from tests.unit.broker.partitions.leading import Leading

CHECK_S = 10
END = 5
NAMES = "lowtide.retention.commitoffset.groups"
AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": str(ANONYMOUS),
}
READER, OWNER = "User:reader", "User:owner"


class World(Leading):
    """A broker with a topic from which consumed records go at once, and clients of several principals."""

    async def begin(self, **settings: str) -> None:
        await self.start(
            log_retention_commitoffset_enable="true",
            log_retention_check_interval_ms=str(CHECK_S * 1000),
            log_initial_task_delay_ms="1000",
            lowtide_audit_log="file",
            lowtide_audit_file="/data/audit",
            offsets_topic_num_partitions="1",
            transaction_state_log_num_partitions="1",
            **settings,
        )
        await self.create_topic(
            "t", (1,), internal_segment_bytes="100", retention_ms="-1", retention_commitoffset_ms="0"
        )
        for _ in range(END):
            rows = [
                TopicProduceData(
                    name="t", partition_data=[PartitionProduceData(index=0, records=build_batch([(1, None, b"v", ())]))]
                )
            ]
            answer = await self.client.request(ProduceRequest(acks=1, timeout_ms=1000, topic_data=rows), 9)
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    async def user(self, principal: str, *operations: Operation) -> Any:
        """A client that is logged in as a principal with READ on all groups and these operations on all topics."""
        before = self.connections()
        client = await self.connect()
        (connection,) = [each for each in self.connections() if each not in before]
        connection.principal = parse_principal(principal)
        rules = [
            AclCreation(
                resource_type=kind,
                resource_name="*",
                resource_pattern_type=3,
                principal=principal,
                host="*",
                operation=operation,
                permission_type=3,
            )
            for kind, operation in [
                (ResourceType.GROUP, Operation.READ),
                (ResourceType.TRANSACTIONAL_ID, Operation.WRITE),
                *((ResourceType.TOPIC, each) for each in operations),
            ]
        ]
        answer = await self.client.request(CreateAclsRequest(creations=rules), 3)
        assert {row.error_code for row in answer.results} == {ErrorCode.NONE}
        return client

    def connections(self) -> list[Any]:
        assert self.broker is not None
        return list(self.broker.serving.host.connections)

    async def name_groups(self, names: str) -> None:
        changed = AlterableConfig(name=NAMES, config_operation=0, value=names)
        row = AlterConfigsResource(resource_type=2, resource_name="t", configs=[changed])
        answer = await self.client.request(IncrementalAlterConfigsRequest(resources=[row], validate_only=False), 1)
        assert (answer.responses[0].error_code, answer.responses[0].error_message) == (0, None)

    async def log_start(self) -> int:
        """After the next pass of retention."""
        await asyncio.sleep(CHECK_S + 1)
        start: int = self.replicas.partitions[("t", 0)].log.log_start_offset
        return start

    async def explained(self) -> str:
        topics = [DescribeRetentionTopic(name="t", partitions=[0])]
        answer = await self.client.request(DescribeRetentionRequest(topics=topics), 0)
        return sentence(answer.topics[0].partitions[0], self.clock.wall_ms())

    async def audited(self) -> list[dict[str, Any]]:
        """The lines about deleted records."""
        await asyncio.sleep(1)
        lines = map(json.loads, self.filesystem.read_bytes("/data/audit").splitlines())
        return [line for line in lines if line["event"] == "records deleted"]


async def commit(client: Any, group: str, offset: int = END) -> None:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=None)
    request = OffsetCommitRequest(
        group_id=group, member_id="", topics=[OffsetCommitRequestTopic(name="t", partitions=[row])]
    )
    for _ in range(100):
        await client.request(FindCoordinatorRequest(key=group), 3)
        error = (await client.request(request, 8)).topics[0].partitions[0].error_code
        if error == ErrorCode.NONE:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(ErrorCode(error))


async def commit_in_transaction(client: Any, group: str, transactional_id: str) -> None:
    """A commit of the end of the topic by a transactional producer, which commits its transaction."""

    async def answered(request: Any, version: int) -> Any:
        for _ in range(100):
            answer = await client.request(request, version)
            rows = [row.error_code for topic in getattr(answer, "topics", ()) for row in topic.partitions]
            if {getattr(answer, "error_code", 0), *rows} == {0}:
                return answer
            await asyncio.sleep(0.1)
        raise AssertionError(answer)

    await answered(FindCoordinatorRequest(key=group), 3)
    await answered(FindCoordinatorRequest(key=transactional_id, key_type=1), 3)
    made = await answered(InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000), 4)
    who = {"transactional_id": transactional_id, "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    await answered(AddOffsetsToTxnRequest(group_id=group, **who), 3)
    row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=END, committed_metadata=None)
    topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[row])]
    await answered(TxnOffsetCommitRequest(group_id=group, topics=topics, **who), 3)
    await answered(EndTxnRequest(committed=True, **who), 3)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], **settings: str) -> None:
    async def main(loop: SimulatedLoop) -> None:
        world = World(loop)
        await world.begin(**settings)
        await scenario(world)

    run_simulation(main, 1)


@pytest.mark.parametrize("commits", [commit, lambda client, group: commit_in_transaction(client, group, group)])
def test_a_commit_deletes_only_by_a_principal_with_delete_on_the_topic(commits: Any) -> None:
    async def scenario(world: World) -> None:
        reader = await world.user(READER, Operation.READ)
        await commits(reader, "of-reader")
        assert await world.log_start() == 0
        assert "all groups have consumed it, and no group that may delete has committed" in await world.explained()
        owner = await world.user(OWNER, Operation.READ, Operation.DELETE)
        await commits(owner, "of-owner")
        assert await world.log_start() == END
        (line,) = await world.audited()
        assert (line["reason"], line["group"], line["committer"]) == ("consumed", "of-owner", OWNER)
        assert (line["topic"], line["partition"], line["old_log_start_offset"], line["log_start_offset"]) == (
            "t",
            0,
            0,
            END,
        )
        assert line["principal"] is None, "no client has asked for it"

    play(scenario, **AUTHORIZER)


def test_that_no_group_may_delete_is_said_once() -> None:
    """The disk fills until another rule deletes: an operator whose groups are not named yet has to see it."""

    async def scenario(world: World) -> None:
        assert world.broker is not None
        retention: Any = world.broker.serving.retention
        lines: list[tuple[str, int, str]] = []
        retention._log = SimpleNamespace(info=lambda event, partitions, first: lines.append((event, partitions, first)))
        reader = await world.user(READER, Operation.READ)
        assert await world.log_start() == 0
        assert lines == [], "nothing is consumed"
        await commit(reader, "of-reader")
        for _ in range(3):
            assert await world.log_start() == 0
        told = ("consumed records are kept: no group that may delete them has committed", 1, "t-0")
        assert lines == [told]
        await world.name_groups("of-reader")
        assert await world.log_start() == END
        assert lines == [told]

    play(scenario, **AUTHORIZER)


def test_a_group_without_the_right_keeps_what_it_has_not_consumed() -> None:
    async def scenario(world: World) -> None:
        await commit(await world.user(READER, Operation.READ), "of-reader", 2)
        await commit(await world.user(OWNER, Operation.READ, Operation.DELETE), "of-owner")
        assert await world.log_start() == 2
        assert "group of-reader is at offset 2 of" in await world.explained()

    play(scenario, **AUTHORIZER)


def test_groups_that_a_topic_names_delete_and_no_other_keeps_anything() -> None:
    async def scenario(world: World) -> None:
        reader = await world.user(READER, Operation.READ)
        await world.name_groups("etl-*,audit")
        await commit(reader, "etl-1", 4)
        await commit(reader, "of-reader", 1)
        assert await world.log_start() == 0
        assert "group audit has not committed an offset" in await world.explained()
        await commit(reader, "audit", 3)
        assert await world.log_start() == 3
        (line,) = await world.audited()
        assert (line["group"], line["committer"]) == ("audit", READER)
        await world.name_groups("etl-*")
        assert await world.log_start() == 4

    play(scenario, **AUTHORIZER)


def test_the_broker_names_groups_of_topics_that_name_none() -> None:
    async def scenario(world: World) -> None:
        reader = await world.user(READER, Operation.READ)
        await commit(reader, "other")
        assert await world.log_start() == 0
        await commit(reader, "etl")
        assert await world.log_start() == END

    play(scenario, lowtide_log_retention_commitoffset_groups="etl", **AUTHORIZER)


def test_without_an_authorizer_every_group_deletes() -> None:
    async def scenario(world: World) -> None:
        await commit(world.client, "g")
        assert await world.log_start() == END
        (line,) = await world.audited()
        assert (line["group"], line["committer"]) == ("g", str(ANONYMOUS))

    play(scenario)


def test_a_super_user_deletes_by_committing() -> None:
    async def scenario(world: World) -> None:
        await commit(world.client, "g")
        assert await world.log_start() == END

    play(scenario, **AUTHORIZER)
