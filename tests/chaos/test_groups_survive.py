"""A broker that is killed at any moment has every acknowledged offset, and the group with its generation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.heartbeat import HeartbeatRequest
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from lowtide.simulation.client import WireClient

from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "6"))
SEED = int(os.environ.get("SEED", "7"))
LIFE_S = (0.05, 0.4)
LIMIT_S = 120.0
TOPIC = "read"
PARTITIONS = 3
GROUPS = [f"group-{number}" for number in range(4)]
SETTINGS = ("group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=5", "auto.create.topics.enable=false")
COMMIT_VERSION, FETCH_VERSION = 9, 9
NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Committer:
    """One group's client: commits rising offsets, and records which were acknowledged and which were only sent."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.sent = dict.fromkeys(range(PARTITIONS), -1)
        self.acknowledged = dict.fromkeys(range(PARTITIONS), -1)

    async def run(self, broker: ServeProcess) -> None:
        """Commits until the connection breaks."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
            client = await broker.connect()
            offset = max(self.sent.values())
            while True:
                offset += 1
                self.sent = dict.fromkeys(range(PARTITIONS), offset)
                rows = [
                    OffsetCommitRequestPartition(partition_index=each, committed_offset=offset, committed_metadata="")
                    for each in self.sent
                ]
                request = OffsetCommitRequest(
                    group_id=self.group, member_id="", topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=rows)]
                )
                response = await client.request(request, COMMIT_VERSION)
                for row in response.topics[0].partitions:
                    if row.error_code == ErrorCode.NONE:
                        self.acknowledged[row.partition_index] = offset
                    else:
                        assert row.error_code in NOT_YET

    async def check(self, client: WireClient) -> None:
        """The committed offset is at least the acknowledged one, and was sent."""
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group, topics=None)], require_stable=True
        )
        async with asyncio.timeout(120):
            while (answer := (await client.request(request, FETCH_VERSION)).groups[0]).error_code in NOT_YET:
                await asyncio.sleep(0.02)
        assert answer.error_code == ErrorCode.NONE
        found = {row.partition_index: row.committed_offset for topic in answer.topics for row in topic.partitions}
        for partition in range(PARTITIONS):
            assert self.acknowledged[partition] <= found.get(partition, -1) <= self.sent[partition]


async def begin(broker: ServeProcess) -> tuple[str, int]:
    """Creates the topics, and a stable group `live` of one member: its id and generation."""
    client = await broker.connect()
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
    await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    await client.request(FindCoordinatorRequest(coordinator_keys=GROUPS), 4)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = JoinGroupRequest(
        group_id="live", session_timeout_ms=60_000, member_id="", protocol_type="consumer", protocols=protocols
    )
    joined = await client.request(join, 3)
    assert joined.error_code == ErrorCode.NONE
    rows = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    sync = SyncGroupRequest(
        group_id="live", generation_id=joined.generation_id, member_id=joined.member_id, assignments=rows
    )
    assert (await client.request(sync, 3)).assignment == b"all"
    client.close()
    return joined.member_id, joined.generation_id


async def check_member(client: WireClient, member_id: str, generation_id: int) -> None:
    """The group is unchanged: its member need not join again."""
    heartbeat = HeartbeatRequest(group_id="live", generation_id=generation_id, member_id=member_id)
    assert (await client.request(heartbeat, 3)).error_code == ErrorCode.NONE
    sync = SyncGroupRequest(group_id="live", generation_id=generation_id, member_id=member_id, assignments=[])
    async with asyncio.timeout(120):
        while (answer := await client.request(sync, 3)).error_code in NOT_YET:
            await asyncio.sleep(0.02)
    assert answer.assignment == b"all"


@pytest.mark.seeds
async def test_acknowledged_offsets_and_groups_survive_sigkill(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    committers = [Committer(group) for group in GROUPS]
    member: tuple[str, int] | None = None
    for life in range(ROUNDS):
        async with ServeProcess(tmp_path, *SETTINGS) as broker:
            if member is None:
                member = await begin(broker)
            client = await broker.connect()
            for committer in committers:
                await committer.check(client)
            await check_member(client, *member)
            running = [asyncio.ensure_future(committer.run(broker)) for committer in committers]
            await asyncio.sleep(rng.uniform(*LIFE_S))
            async with asyncio.timeout(
                LIMIT_S
            ):  # A busy machine does little in a short life: the last one has something to check.
                while life == ROUNDS - 1 and min(most(committer) for committer in committers) <= ROUNDS:
                    assert not any(each.done() for each in running)
                    await asyncio.sleep(0.01)
            await broker.kill()
            client.close()
            await asyncio.gather(*running)
            assert broker.faults == []
    assert all(most(committer) > ROUNDS for committer in committers)


def most(committer: Committer) -> int:
    """Returns its largest offset."""
    return max(committer.acknowledged.values(), default=0)
