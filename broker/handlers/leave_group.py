"""LeaveGroup: v0-v5.

Behaviour: removes members from their group at once, instead of after their sessions; the others rebalance.

Version notes: before v3 there is one member, whose error is that of the response. Later each member has its own, and a
static one may be named by its instance id with an empty member id. v5 has reasons, which are ignored.

Errors: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.

KIPs: 345, 800.
"""

from __future__ import annotations

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

_MEMBERS_SINCE = 3


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: LeaveGroupRequest, context: RequestContext) -> Answer[LeaveGroupResponse]:
        shard = groups.find_named(request.group_id)
        if isinstance(shard, ErrorCode):
            return LeaveGroupResponse(error_code=shard)
        single = context.api_version < _MEMBERS_SINCE

        def decide(pending: Pending[LeaveGroupResponse], effects: Effects) -> None:
            members = [MemberIdentity(member_id=request.member_id)] if single else request.members
            rows = shard.state.leave(request.group_id, members, effects)
            error = rows[0].error_code if single else ErrorCode.NONE
            response = LeaveGroupResponse(error_code=error, members=rows)
            effects.answer_when_committed(pending, response, lambda error: LeaveGroupResponse(error_code=error))

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.LEAVE_GROUP, guard=guards.leave_group, handle=handle)
