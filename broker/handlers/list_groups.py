"""ListGroups: v0-v5.

Behaviour: lists the groups that this broker coordinates, in the requested states and of the requested types. Case is
ignored.

Version notes: v4 has states, v5 types.

Errors: COORDINATOR_LOAD_IN_PROGRESS.

KIPs: 518, 848.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

GROUPS_A_STEP = 200
"""A fifth of a millisecond's work."""


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def steps(shards: Iterable[Shard[Groups]], request: ListGroupsRequest) -> Generator[None, None, ListGroupsResponse]:
        types = {name.strip().lower() for name in request.types_filter}
        states = {name.strip().lower() for name in request.states_filter}
        rows = []
        for shard in shards:
            for number, group in enumerate(list(shard.state.by_id.values()), 1):
                kind, state = group.group_type.value, group.state.value
                if (not types or kind in types) and (not states or state.lower() in states):
                    row = ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type or "",
                        group_state=state,
                        group_type=kind,
                    )
                    rows.append(row)
                if number % GROUPS_A_STEP == 0:
                    yield
            if shard.unloaded:
                return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, groups=[])
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=rows)

    def handle(request: ListGroupsRequest, _context: RequestContext) -> Answer[ListGroupsResponse]:
        shards = groups.loaded()
        if isinstance(shards, ErrorCode):
            return ListGroupsResponse(error_code=shards, groups=[])
        return groups.broker.turns.answer(steps(shards, request))

    return HandlerSpec(key=ApiKey.LIST_GROUPS, guard=guards.list_groups, handle=handle)
