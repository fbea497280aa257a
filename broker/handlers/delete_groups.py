"""DeleteGroups: v0-v2.

Behaviour: forgets groups that have no members, with their offsets, and share groups with the states of their
partitions. Groups that are named twice are answered once.

Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 229.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Final

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

CUT: Final = Cut(levels=(("groups_names", "results"),), changes=True, sequential=True)


class _GroupAnswer:
    """The answer to one request, which is given when the last of its groups is done with."""

    def __init__(self, groups: list[str]) -> None:
        self.pending: Pending[DeleteGroupsResponse] = Pending()
        self._rows = dict.fromkeys(groups, ErrorCode.NONE)
        self._left = len(groups)

    def note(self, group_id: str, error: ErrorCode | None) -> None:
        self._rows[group_id] = error if error is not None else ErrorCode.UNKNOWN_SERVER_ERROR
        self._left -= 1
        if not self._left:
            rows = [DeletableGroupResult(group_id=name, error_code=error) for name, error in self._rows.items()]
            self.pending.complete(DeleteGroupsResponse(results=rows))


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """The handler over the groups of a broker."""

    def handle(
        request: DeleteGroupsRequest, _context: RequestContext
    ) -> DeleteGroupsResponse | Pending[DeleteGroupsResponse]:
        names = list(dict.fromkeys(request.groups_names))
        if not names:
            return DeleteGroupsResponse(results=[])
        answer = _GroupAnswer(names)

        def ask() -> Generator[None, None, bool]:
            for group_id in names:
                shard = groups.find(group_id)
                if isinstance(shard, ErrorCode):
                    answer.note(group_id, shard)
                else:
                    groups.delete(shard, group_id).listen(partial(answer.note, group_id))
                yield
            return True

        groups.broker.turns.ask(answer.pending, ask())
        return answer.pending

    return HandlerSpec(key=ApiKey.DELETE_GROUPS, guard=guards.delete_groups, handle=handle, cut=CUT)
