"""Requests about groups with the longest names: sentences that quote one still fit into a string of the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.request_path import World
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from lowtide.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from lowtide.protocol.messages.describe_groups import DescribeGroupsRequest
from lowtide.protocol.messages.find_coordinator import FindCoordinatorRequest
from lowtide.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from lowtide.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from lowtide.protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from lowtide.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
from lowtide.protocol.schema import ApiMessage
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation

LONGEST = "g" * 32_767


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        (ConsumerGroupHeartbeatRequest(group_id=LONGEST, member_id="m", member_epoch=1, rebalance_timeout_ms=-1), 1),
        (ShareGroupHeartbeatRequest(group_id=LONGEST, member_id="m", member_epoch=1), 1),
        (
            StreamsGroupHeartbeatRequest(group_id=LONGEST, member_id="m", member_epoch=1, endpoint_information_epoch=0),
            0,
        ),
        (DescribeGroupsRequest(groups=[LONGEST]), 6),
        (ConsumerGroupDescribeRequest(group_ids=[LONGEST], include_authorized_operations=False), 1),
        (ShareGroupDescribeRequest(group_ids=[LONGEST], include_authorized_operations=False), 1),
        (StreamsGroupDescribeRequest(group_ids=[LONGEST], include_authorized_operations=False), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unknown_group_is_answered_whatever_its_length(asked: ApiMessage, version: int) -> None:
    async def run(loop: SimulatedLoop) -> None:
        world = World(loop, 1)
        client = await world.begin()
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=[LONGEST])
        while (await client.request(find, 4)).coordinators[0].error_code != ErrorCode.NONE:
            await asyncio.sleep(0.1)  # Of virtual time.
        while (row := _row(await client.request(asked, version))).error_code in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ):
            await asyncio.sleep(0.1)
        assert row.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "g" * 1_000 in row.error_message
        client.close()

    run_simulation(run, 1)


def _row(answer: Any) -> Any:
    """The row of the group, or the answer to a heartbeat."""
    groups = getattr(answer, "groups", None)
    return answer if groups is None else groups[0]
