"""Share groups (KIP-932): reads and sets the start offsets of their share partitions.

Records below the start offset are never delivered again. Start offsets can be set only while the group has no members.
Sources: KIP-932; KIP-1226 for the lag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from lowtide.admin.arguments import named
from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import AdminCall, AdminClientBase, by_topic, failure, is_worth_a_retry
from lowtide.admin.errors import AdminError, BrokerAnsweredError, UnsupportedVersionError, code_name
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
from lowtide.protocol.types import UNKNOWN_OFFSET, BrokerId, Offset, TopicPartition

NO_SUCH_GROUP: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION)
"""A broker's answer about other kinds of groups, and about all groups while `share.version` is 0."""


class ShareOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The start offset of a share partition, and how many records remain, if the broker counts them."""

    offset: Offset
    lag: int | None


ShareOffsets: TypeAlias = dict[TopicPartition, ShareOffset | BrokerAnsweredError]
"""The start offsets of a group; partitions of which no record was acquired are missing."""


def is_no_share_group(error: AdminError) -> bool:
    """Returns whether an error about start offsets means that the group is unknown or of another kind."""
    return isinstance(error, UnsupportedVersionError) or (
        isinstance(error, BrokerAnsweredError) and error.code in NO_SUCH_GROUP
    )


def _what(group: str) -> str:
    return f"the start offsets of share group {group}"


async def list_share_group_offsets(
    client: AdminClientBase, group_ids: Iterable[str], *, timeout: float | None = None
) -> dict[str, ShareOffsets | AdminError]:
    """Returns the start offset and the lag of each share partition; GROUP_ID_NOT_FOUND for other kinds of groups."""
    return await share_offsets_of(client.call(timeout), named(group_ids))


async def share_offsets_of(call: AdminCall, groups: Iterable[str]) -> dict[str, ShareOffsets | AdminError]:
    """Lists start offsets as part of a call."""

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[ShareOffsets]]:
        rows = [DescribeShareOffsetsGroup(group_id=group, topics=None) for group in asked]
        response = await call.ask(broker_id, DescribeShareGroupOffsetsRequest(groups=rows))
        return {row.group_id: _listed(row) for row in response.groups}

    return await call.each(groups, call.to_coordinators, send, _what)


def _rows(topics: Iterable[Any]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic.topic_name, row.partition_index): row for topic in topics for row in topic.partitions}


def _listed(group: Any) -> Outcome[ShareOffsets]:
    """Reads one group's part of an answer."""
    if group.error_code:
        return failure(_what(group.group_id), group.error_code, group.error_message)
    found: ShareOffsets = {}
    for key, row in _rows(group.topics).items():
        if is_worth_a_retry(row.error_code):
            return RetryLater(f"{key}: {code_name(row.error_code)}")
        if row.error_code:
            what = f"{key}: the start offset of share group {group.group_id}"
            found[key] = BrokerAnsweredError(row.error_code, what, row.error_message)
        elif row.start_offset != UNKNOWN_OFFSET:
            found[key] = ShareOffset(offset=row.start_offset, lag=row.lag if row.lag >= 0 else None)
    return Done(found)


async def alter_share_group_offsets(
    client: AdminClientBase, group: str, starts: Mapping[TopicPartition, Offset], *, timeout: float | None = None
) -> dict[TopicPartition, AdminError | None]:
    """Sets the start offsets of a share group; None means done. NON_EMPTY_GROUP while the group has members.

    One retriable error in the answer repeats all of it.
    """
    call = client.call(timeout)
    rows = {
        key: AlterShareOffsetsPartition(partition_index=key.partition, start_offset=offset)
        for key, offset in starts.items()
    }
    topics = [AlterShareOffsetsTopic(topic_name=name, partitions=some) for name, some in by_topic(rows).items()]
    request = AlterShareGroupOffsetsRequest(group_id=group, topics=topics)

    async def send(broker_id: BrokerId, _: list[str]) -> Mapping[str, Outcome[dict[TopicPartition, AdminError | None]]]:
        response = await call.ask(broker_id, request)
        if response.error_code:
            return {group: failure(_what(group), response.error_code, response.error_message)}
        return {group: _altered(response, _what(group), starts)}

    result = (await call.each([group], call.to_coordinators, send, _what))[group]
    return dict.fromkeys(starts, result) if isinstance(result, AdminError) else result


def _altered(
    response: Any, what: str, asked: Collection[TopicPartition]
) -> Outcome[dict[TopicPartition, AdminError | None]]:
    """Returns the outcome of each partition. A partition that the broker leaves out is an error."""
    rows = _rows(response.responses)
    outcomes: dict[TopicPartition, AdminError | None] = {}
    for key in asked:
        code = rows[key].error_code if key in rows else ErrorCode.UNKNOWN_SERVER_ERROR
        if is_worth_a_retry(code):
            return RetryLater(f"{key}: {code_name(code)}")
        message = rows[key].error_message if key in rows else None
        outcomes[key] = BrokerAnsweredError(code, f"{key}: {what}", message) if code else None
    return Done(outcomes)
