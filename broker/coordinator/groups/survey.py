"""Answers what all groups of a broker have consumed: in each partition of `__consumer_offsets` that it leads.

Guards: the result can't be lost. The groups are walked through in steps, while commits continue; then everything that
is in the logs at the end of the walk has to be committed before the answer counts, so it holds for any later
coordinator. The answer lists the partitions it covers with their leader epochs, without those that aren't loaded or no
longer led. The start offsets of share groups are requested after the walk; they only rise, unless an administrator sets
them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

from lowtide.broker.coordinator.groups.consumed import ConsumedEnd, ConsumedOffsets
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.promises import future_of
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_consumed_offsets import (
    ConsumedOffsetsTopic,
    ConsumedPartition,
    ConsumedTopic,
    DescribeConsumedOffsetsResponse,
    SurveyedCoordinator,
)
from lowtide.protocol.types import UNKNOWN_OFFSET


async def survey(
    coordinator: GroupCoordinator, asked: Sequence[ConsumedOffsetsTopic]
) -> DescribeConsumedOffsetsResponse:
    """Returns what the groups of this broker have consumed. Errors (in the answer): COORDINATOR_LOAD_IN_PROGRESS."""
    shards = coordinator.loaded()
    if isinstance(shards, ErrorCode):
        return DescribeConsumedOffsetsResponse(error_code=shards)
    consumed = ConsumedOffsets(asked, every_commit_deletes=coordinator.broker.authorizer.allows_all)
    async with coordinator.survey_turn:  # Many at once would each take a slice before other requests.
        await coordinator.broker.turns.walk(_take_in(coordinator, shards, consumed))
    if consumed.shares:
        starts = await coordinator.share_starts(consumed.shares)
        for place in consumed.shares:
            consumed.take_start(place, starts.get(place))
    outcomes = [(shard, _kept(coordinator, shard)) for shard in shards]
    kept = [shard for shard, outcome in outcomes if await outcome == ErrorCode.NONE]
    return DescribeConsumedOffsetsResponse(
        error_code=ErrorCode.NONE,
        coordinators=[
            SurveyedCoordinator(partition_index=shard.number, leader_epoch=shard.partition.leader_epoch)
            for shard in kept
            if shard.leads and not shard.unloaded
        ],
        topics=[
            ConsumedTopic(name=name, partitions=[_row(number, row) for number, row in rows.items()])
            for name, rows in consumed.found.items()
        ],
    )


def _row(number: int, row: ConsumedEnd) -> ConsumedPartition:
    offset, group_id, committer = (UNKNOWN_OFFSET, None, None) if row.release is None else row.release
    return ConsumedPartition(
        partition_index=number,
        consumed_offset=row.offset,
        group_id=row.group_id,
        releasing_offset=offset,
        releasing_group_id=group_id,
        committer=committer,
    )


def _take_in(
    coordinator: GroupCoordinator, shards: Sequence[Shard[Groups]], consumed: ConsumedOffsets
) -> Iterator[None]:
    named: dict[int, list[str]] = {}
    for group_id in consumed.named_groups:
        named.setdefault(coordinator.partition_of(group_id).partition, []).append(group_id)
    for shard in shards:
        groups = shard.state
        for group_id in list(
            dict.fromkeys((*groups.committed.group_ids(), *groups.by_id, *named.get(shard.number, ())))
        ):
            yield from consumed.take_in(groups, group_id)
            yield


def _kept(coordinator: GroupCoordinator, shard: Shard[Groups]) -> asyncio.Future[ErrorCode]:
    """Returns a future that is done when the shard's state is committed, or with an error."""
    return future_of(partial(coordinator.when_all_committed, shard))
