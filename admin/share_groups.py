"""Share groups (KIP-932): described, where their share partitions start, and those starts set.

A share partition starts at the first record that isn't done with: what is before it is never delivered again. Starts
are set only while the group has no members, as with Kafka's tools. Sources: KIP-932, and KIP-1226 for the lag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from lowtide.admin.attempts import Attempts, Done, Outcome, Retry
from lowtide.admin.errors import AdminError, BrokerAnsweredError, UnsupportedVersionError, code_name
from lowtide.admin.group_offsets import coordinator_locator, final_or_retry
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from lowtide.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.patience import Deadline

_NO_SUCH_GROUP: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
"""What a broker answers about other groups, and about all while `share.version` is 0."""


class ShareOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a share partition starts, and how many records are still to be delivered: None where the broker doesn't count."""

    offset: Offset
    lag: int | None


ShareOffsets: TypeAlias = dict[TopicPartition, ShareOffset | BrokerAnsweredError]
"""Of one group; a partition of which no record was acquired yet isn't in it."""


async def described_share_groups(handle: BrokerHandle, asked: list[str]) -> list[Any]:
    """The rows of those among the groups that are share groups; others aren't in it."""
    response = await handle.ask(ShareGroupDescribeRequest(group_ids=asked, include_authorized_operations=False))
    return [row for row in response.groups if row.error_code not in _NO_SUCH_GROUP]


def is_no_share_group(error: AdminError) -> bool:
    """Whether a group was asked for its starts that has none, for it is of another kind, or unknown."""
    return isinstance(error, UnsupportedVersionError) or (
        isinstance(error, BrokerAnsweredError) and error.code in _NO_SUCH_GROUP
    )


async def list_share_group_offsets(
    cluster: Cluster, groups: Iterable[str], deadline: Deadline
) -> dict[str, ShareOffsets | AdminError]:
    """See `AdminClient.list_share_group_offsets`."""

    async def send(broker_id: BrokerId, asked: list[str], _: int) -> Mapping[str, Outcome[ShareOffsets]]:
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareOffsetsGroup(group_id=group, topics=None) for group in asked]
        )
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(request)
        return {row.group_id: _found(row) for row in response.groups}

    attempts = Attempts[str, ShareOffsets](cluster, deadline, coordinator_locator(cluster, deadline), send)
    await attempts.run(list(dict.fromkeys(groups)))
    return attempts.results(lambda group: f"the starts of share group {group}")


def _found(group: Any) -> Outcome[ShareOffsets]:
    """What one group's part of an answer says."""
    if group.error_code:
        return final_or_retry(group.error_code, f"the starts of share group {group.group_id}", group.error_message)
    found: ShareOffsets = {}
    for topic in group.topics:
        for row in topic.partitions:
            key = TopicPartition(topic.topic_name, row.partition_index)
            if (
                row.error_code
                and is_retriable(row.error_code)
                and row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ):
                return Retry(f"{key}: {code_name(row.error_code)}")
            if row.error_code:
                found[key] = BrokerAnsweredError(
                    row.error_code, f"{key}: the start of share group {group.group_id}", row.error_message
                )
            elif row.start_offset != UNKNOWN_OFFSET:
                found[key] = ShareOffset(offset=row.start_offset, lag=row.lag if row.lag >= 0 else None)
    return Done(found)


async def alter_share_group_offsets(
    cluster: Cluster, group: str, starts: Mapping[TopicPartition, Offset], deadline: Deadline
) -> dict[TopicPartition, AdminError | None]:
    """See `AdminClient.alter_share_group_offsets`; all of it is repeated while any of it is answered as retriable."""
    by_topic: dict[str, list[AlterShareOffsetsPartition]] = {}
    for key, offset in starts.items():
        by_topic.setdefault(key.topic, []).append(
            AlterShareOffsetsPartition(partition_index=key.partition, start_offset=offset)
        )
    topics = [AlterShareOffsetsTopic(topic_name=name, partitions=rows) for name, rows in by_topic.items()]
    request = AlterShareGroupOffsetsRequest(group_id=group, topics=topics)
    what = f"the starts of share group {group}"

    async def send(
        broker_id: BrokerId, _: list[str], __: int
    ) -> Mapping[str, Outcome[dict[TopicPartition, AdminError | None]]]:
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(request)
        if response.error_code:
            return {group: final_or_retry(response.error_code, what, response.error_message)}
        return {group: _altered(response, what, starts)}

    attempts = Attempts[str, dict[TopicPartition, AdminError | None]](
        cluster, deadline, coordinator_locator(cluster, deadline), send
    )
    await attempts.run([group])
    outcome = attempts.results(lambda _: what)[group]
    return dict.fromkeys(starts, outcome) if isinstance(outcome, AdminError) else outcome


def _altered(
    response: Any, what: str, asked: Collection[TopicPartition]
) -> Outcome[dict[TopicPartition, AdminError | None]]:
    """What became of each partition; one that the broker leaves out is an error."""
    rows = {
        TopicPartition(topic.topic_name, row.partition_index): row
        for topic in response.responses
        for row in topic.partitions
    }
    outcomes: dict[TopicPartition, AdminError | None] = {}
    for key in asked:
        code = rows[key].error_code if key in rows else ErrorCode.UNKNOWN_SERVER_ERROR
        if is_retriable(code) and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return Retry(f"{key}: {code_name(code)}")
        outcomes[key] = (
            BrokerAnsweredError(code, f"{key}: {what}", rows[key].error_message if key in rows else None)
            if code
            else None
        )
    return Done(outcomes)
