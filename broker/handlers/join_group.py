"""JoinGroup: v0-v9.

Behaviour: a member joins its group's rebalance, or starts one, and is answered when that is complete. An empty group
waits for more members first (`group.initial.rebalance.delay.ms`, again while they come). Members that don't join in
time are out, but for static ones. The leader is the member that is longest in the group, and receives all.

Version notes: v0 has no time-out of its own for rebalances. v4 gives a member its id first, with MEMBER_ID_REQUIRED. v5
has static members: one that comes back under its instance id takes its place over, in a stable group without a
rebalance; from v9 on it may be the leader then, too (`skip_assignment`). v7 tells the protocol's type.

Errors: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID,
FENCED_INSTANCE_ID, GROUP_MAX_SIZE_REACHED (also for more than ten thousand ids that were given out and not used, and
where members would have more to be remembered than `coordinator/member_memory.py` allows), NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

A member that has an id and few protocols is served by a quick path: the compiled module reads its request, and writes
the answer that it has joined. What is decided is decided by the same functions.

KIPs: 62, 134, 345, 389, 394, 559, 800, 814.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.broker.coordinator.classic.rebalancing import join_failed
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.network.routes import HandlerSpec, QuickPath
from lowtide.broker.pending import Pending, mapped
from lowtide.broker.request_context import Client as Connection
from lowtide.broker.request_context import RequestContext
from lowtide.protocol import native
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse

if TYPE_CHECKING:
    from lowtide.broker.coordinator.classic.joining import MemberClient
    from lowtide.broker.coordinator.groups.group_shard import Groups
    from lowtide.protocol.native import CompiledWalk, SmallJoin

_NULL_PROTOCOL_SINCE = 7


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """The handler over the groups of a broker."""

    def handle(request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse | Pending[JoinGroupResponse]:
        version = context.api_version
        refusal = groups.check_group_id(request.group_id)
        shard = refusal if refusal is not None else groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            response = join_failed(shard, request.member_id)
            return response if version >= _NULL_PROTOCOL_SINCE else _without_null(response)
        return _join(groups, shard, request, groups.client_of(context))

    compiled = native.compiled
    return HandlerSpec(
        key=ApiKey.JOIN_GROUP, handle=handle, quick=None if compiled is None else _quick(groups, compiled)
    )


def _quick(groups: GroupCoordinator, compiled: CompiledWalk) -> QuickPath:
    write = compiled.join_answer

    def handle(
        asked: SmallJoin, _buffer: memoryview, connection: Connection
    ) -> bytes | Pending[JoinGroupResponse] | None:
        (
            version,
            correlation_id,
            client_id,
            group_id,
            session_ms,
            rebalance_ms,
            member_id,
            instance_id,
            protocol_type,
            protocols,
        ) = asked
        shard = groups.find(group_id)
        client = groups.open_client_of(client_id, connection, version)
        if isinstance(shard, ErrorCode) or client is None:
            return None
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )
        pending = _join(groups, shard, request, client)
        answer = pending.response
        if answer is None or answer.error_code != ErrorCode.NONE:
            return pending
        members = tuple([(member.member_id, member.group_instance_id, member.metadata) for member in answer.members])
        named = answer.protocol_type, answer.protocol_name
        frame = write(
            version, correlation_id, answer.generation_id, *named, answer.leader, answer.skip_assignment, answer.member_id, members
        )  # fmt: skip
        return pending if frame is None else frame

    return QuickPath(compiled.read_join, handle)


def _join(
    groups: GroupCoordinator, shard: Shard[Groups], request: JoinGroupRequest, client: MemberClient
) -> Pending[JoinGroupResponse]:
    def decide(pending: Pending[JoinGroupResponse], effects: Effects) -> None:
        shard.state.join(request, client, pending, effects)

    answer = groups.decide(shard, decide)
    return answer if client.api_version >= _NULL_PROTOCOL_SINCE else _without_nulls(answer)


def _without_nulls(answer: Pending[JoinGroupResponse]) -> Pending[JoinGroupResponse]:
    if answer.done:
        if answer.response is not None:
            _without_null(answer.response)
        return answer
    return mapped(answer, _without_null)


def _without_null(response: JoinGroupResponse) -> JoinGroupResponse:
    """Before version 7 no protocol is an empty name."""
    if response.protocol_name is None:
        response.protocol_name = ""
    return response
