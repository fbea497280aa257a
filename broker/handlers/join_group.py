"""JoinGroup: v0-v9.

Behaviour: a member joins its group's rebalance, or starts one. The response is sent when the rebalance is complete. An
empty group first waits for more members (`group.initial.rebalance.delay.ms`, repeated while they come). Members that
don't join in time are removed, except static ones. The leader is the oldest member, and receives all subscriptions.

Version notes: v0 has no rebalance timeout. v4 first returns a member id, with MEMBER_ID_REQUIRED. v5 has static
members: one that returns under its instance id takes over its place, without a rebalance if the group is stable; from
v9 on it may also be the leader (`skip_assignment`). v7 has the protocol type.

Errors: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED (also for more than ten thousand unused member ids, and above the memory
limits of `coordinator/member_memory.py`), NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 62, 134, 345, 389, 394, 559, 800, 814.
"""

from __future__ import annotations

from lowtide.broker.coordinator.classic.rebalancing import join_failed
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

_NULL_PROTOCOL_SINCE = 7


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: JoinGroupRequest, context: RequestContext) -> Answer[JoinGroupResponse]:
        version = context.api_version
        shard = groups.find_named(request.group_id)
        if isinstance(shard, ErrorCode):
            response = join_failed(shard, request.member_id)
            return response if version >= _NULL_PROTOCOL_SINCE else _without_null(response)
        client = groups.client_of(context)

        def decide(pending: Pending[JoinGroupResponse], effects: Effects) -> None:
            shard.state.join(request, client, pending, effects)

        answer = groups.decide(shard, decide)
        return answer if version >= _NULL_PROTOCOL_SINCE else _without_nulls(answer)

    return HandlerSpec(key=ApiKey.JOIN_GROUP, guard=guards.join_group, handle=handle)


def _without_nulls(answer: Pending[JoinGroupResponse]) -> Pending[JoinGroupResponse]:
    if answer.done:
        if answer.response is not None:
            _without_null(answer.response)
        return answer
    return mapped(answer, _without_null)


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    """Makes the name empty if there is no protocol, as before v7."""
    if response.protocol_name is None:
        response.protocol_name = ""
    return response
