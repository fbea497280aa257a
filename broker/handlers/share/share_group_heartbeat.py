"""ShareGroupHeartbeat: v1-v1.

Behaviour: a member of a share group joins (epoch 0), continues, and leaves (-1). Each response has its epoch, and its
partitions if they are new or the member reported all fields. A partition may have several members. Partitions are
assigned once their states are initialized at the share coordinator.

Errors: INVALID_REQUEST, GROUP_ID_NOT_FOUND (also for a group of another type), GROUP_MAX_SIZE_REACHED,
UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 932.
"""

from __future__ import annotations

from functools import partial

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.modern.share_heartbeats import check_heartbeat, heartbeat_failed
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import share_groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_group_heartbeat import (
    JOIN_EPOCH,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: ShareGroupHeartbeatRequest, context: RequestContext) -> Answer[ShareGroupHeartbeatResponse]:
        refusal = check_heartbeat(request)
        if refusal is not None:
            return heartbeat_failed(refusal.error, refusal.message)
        if request.member_epoch == JOIN_EPOCH:
            return groups.joins.carry_out(partial(beat, request, context))
        return beat(request, context)

    def beat(request: ShareGroupHeartbeatRequest, context: RequestContext) -> Answer[ShareGroupHeartbeatResponse]:
        shard = groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return heartbeat_failed(shard)
        client = groups.client_of(context)

        def decide(pending: Pending[ShareGroupHeartbeatResponse], effects: Effects) -> None:
            shard.state.share_heartbeats.heartbeat(request, client, pending, effects)

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.SHARE_GROUP_HEARTBEAT, guard=guards.share_group_heartbeat, handle=handle)
