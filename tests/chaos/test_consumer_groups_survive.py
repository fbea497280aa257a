"""A broker that is killed at any moment restores the members of a consumer group: their partitions and epochs.

Members join and leave while it runs. A member that received its response continues after the kill; any other sends its
full state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.simulation.client import WireClient

from .serving import ServeProcess

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SEED = int(os.environ.get("SEED", "7"))
LIFE_S = (0.1, 0.5)
TOPIC, GROUP = "read", "group"
PARTITIONS = set(range(6))
SETTINGS = (
    "offsets.topic.num.partitions=3",
    "auto.create.topics.enable=false",
    "group.consumer.assignment.interval.ms=50",
    "group.consumer.max.session.timeout.ms=600000",
    "group.consumer.session.timeout.ms=600000",
)
NOT_YET = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Member:
    """A client of the new protocol."""

    def __init__(self, number: int) -> None:
        self.member_id = f"member-{number}"
        self.epoch = 0
        self.owned: set[int] = set()
        self.says_all = True
        self.topic_id = b""

    async def beat(self, client: WireClient) -> None:
        """Sends a heartbeat with its partitions; it revokes and takes partitions at once."""
        rows = [HeartbeatTopicPartitions(topic_id=self.topic_id, partitions=sorted(self.owned))] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id=self.member_id, member_epoch=self.epoch, topic_partitions=rows
        )
        if self.says_all:
            request.rebalance_timeout_ms, request.subscribed_topic_names = 600_000, [TOPIC]
        self.says_all = True
        answer = await client.request(request, 1)
        if answer.error_code in NOT_YET:
            await asyncio.sleep(0.02)
            return
        assert answer.error_code == ErrorCode.NONE, (
            ErrorCode(answer.error_code).name,
            answer.error_message,
            self.epoch,
        )
        self.says_all = False
        assert answer.member_epoch >= self.epoch
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = set()
            for row in answer.assignment.topic_partitions:
                self.topic_id, self.owned = row.topic_id, set(row.partitions)

    async def leave(self, client: WireClient) -> None:
        """Leaves, and waits for the response."""
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=-1)
        async with asyncio.timeout(120):
            while (answer := await client.request(request, 1)).error_code in NOT_YET:
                await asyncio.sleep(0.02)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID), ErrorCode(answer.error_code).name


def check_owners(members: list[Member]) -> None:
    owned = [number for member in members for number in member.owned]
    assert len(owned) == len(set(owned)), {member.member_id: member.owned for member in members}


async def beat_until_killed(broker: ServeProcess, members: list[Member]) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, EOFError):
        client = await broker.connect()
        while True:
            for member in members:
                await member.beat(client)
                check_owners(members)


async def settle(broker: ServeProcess, members: list[Member]) -> None:
    """All members apply their assignments until each partition has an owner."""
    client = await broker.connect()
    async with asyncio.timeout(120):
        while not (
            all(member.owned for member in members) and set().union(*(member.owned for member in members)) == PARTITIONS
        ):
            for member in members:
                await member.beat(client)
                check_owners(members)
        while True:
            described = (
                await client.request(
                    ConsumerGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False), 1
                )
            ).groups[0]
            if described.group_state == "Stable":
                break
            for member in members:
                await member.beat(client)
    assert {row.member_id: row.member_epoch for row in described.members} == {
        member.member_id: member.epoch for member in members
    }
    client.close()


@pytest.mark.seeds
@pytest.mark.slow
async def test_members_go_on_after_sigkill(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    members: list[Member] = []
    for number in range(ROUNDS):
        async with ServeProcess(tmp_path, *SETTINGS) as broker:
            client = await broker.connect()
            if not number:
                topic = CreatableTopic(
                    name=TOPIC, num_partitions=len(PARTITIONS), replication_factor=1, assignments=[], configs=[]
                )
                await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
                await client.request(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
            elif len(members) > 2:
                await members.pop(rng.randrange(len(members))).leave(client)
            members.append(Member(number))
            client.close()
            running = asyncio.ensure_future(beat_until_killed(broker, members))
            await asyncio.sleep(rng.uniform(*LIFE_S))
            await broker.kill()
            await running
            assert broker.faults == []
    async with ServeProcess(tmp_path, *SETTINGS) as broker:
        await settle(broker, members)
