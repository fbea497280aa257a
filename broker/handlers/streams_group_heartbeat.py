"""StreamsGroupHeartbeat: v0-v1.

Behaviour: a member of a streams group joins with its topology (epoch 0), continues, and leaves (-1; -2 for a static
member that will return). Each response has the member's epoch, its tasks if they changed, and what is wrong with the
group's topics. The broker creates missing internal topics with the permissions of the client. The first members of a
group wait for others. An empty classic group is replaced; one with members is not.

Version notes: v1 has the acceptable recovery lag in 64 bits, and the status about missing client tags.

Errors: INVALID_REQUEST (also for another topology of the same group), STREAMS_INVALID_TOPOLOGY, GROUP_ID_NOT_FOUND
(also for a group of another type), GROUP_MAX_SIZE_REACHED (also above ten thousand members), UNKNOWN_MEMBER_ID,
FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID, UNSUPPORTED_VERSION if streams groups are disabled,
NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from lowtide.broker.administration.streams_topics import InternalTopic, StreamsTopics
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import CLUSTER, Operation, topic
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.streams.heartbeat_checks import check_heartbeat
from lowtide.broker.coordinator.streams.streams_heartbeats import StreamsHeartbeat, heartbeat_failed
from lowtide.broker.coordinator.streams.topology import InternalTopicSpec
from lowtide.broker.guards import streams_groups as guards
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_heartbeat import (
    JOIN_EPOCH,
    HeartbeatStatus,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
)
from lowtide.replication.new_topics import TopicSpec

ERRORS_SHOWN: Final = 3
"""The most creation errors in a status. Source: `KafkaApis.handleStreamsGroupHeartbeat`."""


def handler(groups: GroupCoordinator, topics: TopicAdministrator) -> HandlerSpec:
    """Returns the handler."""
    internal = StreamsTopics(topics)

    def handle(request: StreamsGroupHeartbeatRequest, context: RequestContext) -> Answer[StreamsGroupHeartbeatResponse]:
        if not groups.serves_streams_groups:
            return heartbeat_failed(ErrorCode.UNSUPPORTED_VERSION)
        refusal = check_heartbeat(request)
        if refusal is not None:
            return heartbeat_failed(refusal.error, refusal.message)
        if request.member_epoch == JOIN_EPOCH:
            return groups.joins.carry_out(partial(beat, request, context))
        return beat(request, context)

    def beat(request: StreamsGroupHeartbeatRequest, context: RequestContext) -> Answer[StreamsGroupHeartbeatResponse]:
        shard = groups.find(request.group_id)
        if isinstance(shard, ErrorCode):
            return heartbeat_failed(shard)
        client = groups.client_of(context)

        def decide(pending: Pending[StreamsHeartbeat], effects: Effects) -> None:
            shard.state.streams_heartbeats.heartbeat(request, client, pending, effects)

        remember_ms = 2 * shard.state.streams.settings.heartbeat_interval_ms(request.group_id)
        return mapped(groups.decide(shard, decide), partial(finish, context, remember_ms))

    def finish(context: RequestContext, remember_ms: int, beat: StreamsHeartbeat) -> StreamsGroupHeartbeatResponse:
        """Starts the creation of internal topics, and adds to the status why some can't be created."""
        if not beat.to_create:
            return beat.response
        denied = _not_allowed(groups, context, beat.to_create)
        if denied:
            return _with_detail(beat.response, f"Unauthorized to CREATE on topics {', '.join(denied)}.")
        internal.create(map(_topic, beat.to_create.values()), context, remember_ms)
        errors = internal.errors(beat.to_create)
        if not errors:
            return beat.response
        shown = ", ".join(f"{name} ({message})" for name, message in list(errors.items())[:ERRORS_SHOWN])
        more = f" and {len(errors) - ERRORS_SHOWN} more" if len(errors) > ERRORS_SHOWN else ""
        return _with_detail(beat.response, f"Creation failed: {shown}{more}.")

    return HandlerSpec(key=ApiKey.STREAMS_GROUP_HEARTBEAT, guard=guards.streams_group_heartbeat, handle=handle)


def _not_allowed(
    groups: GroupCoordinator, context: RequestContext, names: Mapping[str, InternalTopicSpec]
) -> list[str]:
    """Returns the topics that the client may not create."""
    authorizer = groups.broker.authorizer
    if authorizer.allows_all or authorizer.authorize(context, Operation.CREATE, CLUSTER, Audit.ALLOWED):
        return []
    return [name for name in names if not authorizer.authorize(context, Operation.CREATE, topic(name))]


def _topic(spec: InternalTopicSpec) -> InternalTopic:
    return TopicSpec(spec.name, spec.partitions, spec.replication_factor), list(spec.configs.items())


def _with_detail(response: StreamsGroupHeartbeatResponse, detail: str) -> StreamsGroupHeartbeatResponse:
    """Adds to the status about missing internal topics. Adds that status if the response lacks it."""
    response.status = statuses = list(response.status or ())
    for status in statuses:
        if status.status_code == StreamsStatus.MISSING_INTERNAL_TOPICS:
            status.status_detail = f"{status.status_detail}; {detail}"
            return response
    statuses.append(HeartbeatStatus(status_code=StreamsStatus.MISSING_INTERNAL_TOPICS, status_detail=detail))
    return response
