"""SyncGroup: v0-v5.

Behaviour: the leader of a new generation hands in all assignments; every member is answered with its own when they are
kept. A member that the leader forgot gets an empty one. In a stable group the answer is there at once.

Version notes: v3 has static members. v5 must name the protocol's type and the protocol.

Errors: INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
REBALANCE_IN_PROGRESS, MESSAGE_TOO_LARGE where the group doesn't fit into a record (Kafka says UNKNOWN_SERVER_ERROR),
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

Requests of up to 64 assignments are served by a quick path: the compiled module reads them, and writes the answer with
the assignment. What is decided is decided by the same function.

KIPs: 345, 559.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lowtide.broker.coordinator.classic.rebalancing import sync_failed
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.network.routes import HandlerSpec, QuickPath
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol import native
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

if TYPE_CHECKING:
    from lowtide.broker.coordinator.groups.group_shard import Groups
    from lowtide.protocol.native import CompiledWalk, SmallSync

_NAMES_REQUIRED_SINCE = 5


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """The handler over the groups of a broker."""

    def handle(request: SyncGroupRequest, context: RequestContext) -> SyncGroupResponse | Pending[SyncGroupResponse]:
        if context.api_version >= _NAMES_REQUIRED_SINCE and (
            request.protocol_type is None or request.protocol_name is None
        ):
            return sync_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        refusal = groups.check_group_id(request.group_id)
        shard = refusal if refusal is not None else groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return sync_failed(shard)
        return _sync(groups, shard, request)

    compiled = native.compiled
    return HandlerSpec(
        key=ApiKey.SYNC_GROUP, handle=handle, quick=None if compiled is None else _quick(groups, compiled)
    )


def _quick(groups: GroupCoordinator, compiled: CompiledWalk) -> QuickPath:
    write = compiled.sync_answer

    def handle(asked: SmallSync, _buffer: memoryview, _client: Any) -> bytes | Pending[SyncGroupResponse] | None:
        (
            version,
            correlation_id,
            group_id,
            generation_id,
            member_id,
            instance_id,
            protocol_type,
            protocol_name,
            assignments,
        ) = asked
        shard = groups.find(group_id)
        if isinstance(shard, ErrorCode):
            return None
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member, assignment=assignment)
                for member, assignment in assignments
            ],
        )
        pending = _sync(groups, shard, request)
        answer = pending.response
        if answer is None or answer.error_code != ErrorCode.NONE:
            return pending
        frame = write(version, correlation_id, answer.protocol_type, answer.protocol_name, answer.assignment)
        return pending if frame is None else frame

    return QuickPath(compiled.read_sync, handle)


def _sync(groups: GroupCoordinator, shard: Shard[Groups], request: SyncGroupRequest) -> Pending[SyncGroupResponse]:
    def decide(pending: Pending[SyncGroupResponse], effects: Effects) -> None:
        shard.state.sync(request, pending, effects)

    return groups.decide(shard, decide)
