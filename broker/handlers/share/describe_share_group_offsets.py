"""DescribeShareGroupOffsets: v0-v1.

Behaviour: returns the start offsets of share groups that are coordinated here, for the named partitions or for all that
have a state. A start offset of -1 isn't known yet: no member has fetched, or the group doesn't exist. A group that is
listed twice is described twice.

Version notes: v1 has the lag if this broker leads the partition; otherwise it is -1.

Errors: GROUP_ID_NOT_FOUND for a group of another type, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; of partitions
those of ReadShareGroupStateSummary.

KIPs: 932, 1226.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.guards import share_groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)

CUT: Final = Cut(levels=(("groups", "groups"), ("topics", "topics"), ("partitions", "partitions")))


def handler(offsets: ShareOffsets) -> HandlerSpec:
    """Returns the handler."""

    async def handle(
        request: DescribeShareGroupOffsetsRequest, _context: RequestContext
    ) -> DescribeShareGroupOffsetsResponse:
        return DescribeShareGroupOffsetsResponse(groups=[await offsets.describe(group) for group in request.groups])

    return HandlerSpec(
        key=ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, guard=guards.describe_share_group_offsets, handle_later=handle, cut=CUT
    )
