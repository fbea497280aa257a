"""ConsumerGroupHeartbeat: v0-v1.

Behaviour: a member of a consumer group joins (epoch 0), continues, and leaves (-1; -2 for a static member that will
return). Each response has the member's epoch, and its assignment if that is new or the member reported all fields. A
partition is assigned to a member after every other member has released it. A classic group of consumers becomes a
consumer group when the first such member joins.

Version notes: v1 has topic patterns, and member ids that clients generate.

Errors: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, GROUP_ID_NOT_FOUND (also for a classic group
that can't be converted), GROUP_MAX_SIZE_REACHED (also above ten thousand members), UNKNOWN_MEMBER_ID,
FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, UNSUPPORTED_VERSION if consumer groups are disabled,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 848, 1082, 1101.
"""

from __future__ import annotations

from functools import partial

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.modern.consumer_heartbeats import check_heartbeat, heartbeat_failed
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.consumer_group_heartbeat import (
    JOIN_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""

    def handle(
        request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> Answer[ConsumerGroupHeartbeatResponse]:
        if not groups.serves_consumer_groups:
            return heartbeat_failed(ErrorCode.UNSUPPORTED_VERSION)
        refusal = check_heartbeat(request, context.api_version, groups.settings.consumer_assignors)
        if refusal is not None:
            return heartbeat_failed(refusal.error, refusal.message)
        if request.member_epoch == JOIN_EPOCH:
            return groups.joins.carry_out(partial(beat, request, context))
        return beat(request, context)

    def beat(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> Answer[ConsumerGroupHeartbeatResponse]:
        shard = groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return heartbeat_failed(shard)
        client = groups.client_of(context)

        def decide(pending: Pending[ConsumerGroupHeartbeatResponse], effects: Effects) -> None:
            shard.state.heartbeats.heartbeat(request, client, pending, effects)

        return groups.decide(shard, decide)

    return HandlerSpec(key=ApiKey.CONSUMER_GROUP_HEARTBEAT, guard=guards.consumer_group_heartbeat, handle=handle)
