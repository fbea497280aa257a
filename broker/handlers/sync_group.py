"""SyncGroup: v0-v5.

Behaviour: the leader of a new generation sends all assignments; each member receives its own when they are committed. A
member that the leader left out gets an empty one. A stable group answers at once.

Version notes: v3 has static members. v5 requires the protocol type and the protocol.

Errors: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
REBALANCE_IN_PROGRESS, MESSAGE_TOO_LARGE if the group doesn't fit into a record (UNKNOWN_SERVER_ERROR in Kafka),
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 345, 559.
"""

from __future__ import annotations

from lowtide.broker.coordinator.classic.rebalancing import sync_failed
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_NAMES_REQUIRED_SINCE = 5


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: SyncGroupRequest, context: RequestContext) -> Answer[SyncGroupResponse]:
        if context.api_version >= _NAMES_REQUIRED_SINCE and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return sync_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        shard = groups.find_named(request.group_id)
        if isinstance(shard, ErrorCode):
            return sync_failed(shard)

        def decide(pending: Pending[SyncGroupResponse], effects: Effects) -> None:
            shard.state.sync(request, pending, effects)

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.SYNC_GROUP, guard=guards.sync_group, handle=handle)
