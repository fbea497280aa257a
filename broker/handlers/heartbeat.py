"""Heartbeat: v0-v4.

Behaviour: extends a member's session, and tells it whether to join again. While the coordinator is loading, heartbeats
succeed.

Version notes: v3 has static members.

Errors: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
NOT_COORDINATOR.

KIPs: 345.
"""

from __future__ import annotations

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""
    clock = groups.broker.clock

    def handle(request: HeartbeatRequest, _context: RequestContext) -> HeartbeatResponse:
        shard = groups.find_named(request.group_id)
        if isinstance(shard, ErrorCode):
            return HeartbeatResponse(
                error_code=ErrorCode.NONE if shard == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else shard
            )
        error = shard.state.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, clock.monotonic_ms()
        )
        return HeartbeatResponse(error_code=error)

    return HandlerSpec(key=ApiKey.HEARTBEAT, guard=guards.heartbeat, handle=handle)
