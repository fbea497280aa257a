"""DescribeShareGroupOffsets: v0-v1.

Behaviour: how far share groups are that are coordinated here, in the partitions that are named, or in all that have a
state. A start of -1 isn't known yet: no member has fetched, or the group doesn't exist yet. Groups that are named twice
are described twice.

Version notes: v1 has the lag, where this broker leads the partition; else it is -1.

Errors: GROUP_ID_NOT_FOUND for a group of another type, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; of partitions
those of ReadShareGroupStateSummary.

KIPs: 932, 1226.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.network.request_parts import Cut
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)

CUT: Final = Cut(levels=(("groups", "groups"), ("topics", "topics"), ("partitions", "partitions")))


def handler(offsets: ShareOffsets) -> HandlerSpec:
    """The handler over the share groups of a broker."""

    async def handle(
        request: DescribeShareGroupOffsetsRequest, _context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        return DescribeShareGroupOffsetsResponse(groups=[await offsets.describe(group) for group in request.groups])

    return HandlerSpec(key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, handle_later=handle, cut=CUT)
