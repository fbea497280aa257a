"""ListGroups: v0-v5.

Behaviour: lists the groups that this broker coordinates, those in the states and of the types that are asked for. Letters' case doesn't
count.

Version notes: v4 has states, v5 types: classic, and consumer for groups whose partitions the broker assigns.

Errors: COORDINATOR_LOAD_IN_PROGRESS.

KIPs: 518, 848.
"""

from __future__ import annotations

from lowtide.broker.coordinator.consumer.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.network.connection import RequestContext
from lowtide.broker.network.dispatcher import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"
CONSUMER = "consumer"


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """The handler over the groups of a broker."""

    def handle(request: ListGroupsRequest, _context: RequestContext) -> ListGroupsResponse:
        shards = groups.loaded()
        if isinstance(shards, ErrorCode):
            return ListGroupsResponse(error_code=shards, groups=[])
        types = {name.strip().lower() for name in request.types_filter}
        rows = [
            ListedGroup(group_id=group.group_id, protocol_type=group.protocol_type or "", group_state=group.state.value, group_type=kind)
            for shard in shards
            for group in shard.state.list(request.states_filter)
            if (kind := CONSUMER if isinstance(group, ConsumerGroup) else CLASSIC) in types or not types
        ]
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=rows)

    return HandlerSpec(key=ApiKey.LIST_GROUPS, handle=handle)
