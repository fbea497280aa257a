"""DeleteGroups: v0-v3.

Behaviour: deletes groups without members, with their offsets, and share groups with the states of their partitions. A
group that is listed twice is answered once.

Version notes: v3 has an error message, which is null: Kafka sets it only when a plug-in that stores the topologies of
streams groups fails.

Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 229.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Final

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.guards import groups as guards
from lowtide.broker.joined_parts import JoinedParts
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

CUT: Final = Cut(levels=(("groups_names", "results"),), changes=True, sequential=True)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: DeleteGroupsRequest, _context: RequestContext) -> Answer[DeleteGroupsResponse]:
        names = list(dict.fromkeys(request.groups_names))
        if not names:
            return DeleteGroupsResponse(results=[])
        errors: dict[str, ErrorCode] = {}

        def respond() -> DeleteGroupsResponse:
            return DeleteGroupsResponse(
                results=[DeletableGroupResult(group_id=name, error_code=errors[name]) for name in names]
            )

        joined = JoinedParts(respond, len(names))

        def note(group_id: str, error: ErrorCode | None) -> None:
            errors[group_id] = error if error is not None else ErrorCode.UNKNOWN_SERVER_ERROR
            joined.arrived()

        def ask() -> Generator[None, None, bool]:
            for group_id in names:
                shard = groups.find(group_id)
                if isinstance(shard, ErrorCode):
                    note(group_id, shard)
                else:
                    groups.delete(shard, group_id).listen(partial(note, group_id))
                yield
            return True

        groups.broker.turns.ask(joined.pending, ask())
        return joined.pending

    return HandlerSpec(key=ApiKey.DELETE_GROUPS, guard=guards.delete_groups, handle=handle, cut=CUT)
