"""ShareAcknowledge: v1-v2.

Behaviour: a member acknowledges, within its share session, records that it has acquired from partitions that are led
here. A row is answered when the share coordinator has stored it. The final epoch closes the session: the member's
records become available again, and the delivery is counted. If a partition is listed twice, the last entry wins.

Version notes: v2 may renew locks (IsRenewAck), and tells the lock duration (KIP-1222).

Errors: GROUP_AUTHORIZATION_FAILED, INVALID_REQUEST, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH; of partitions
INVALID_REQUEST, INVALID_RECORD_STATE, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER, COORDINATOR_NOT_AVAILABLE.

KIPs: 932, 951, 1222.
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.guards.guard import for_members
from lowtide.broker.handlers.share.share_access import ShareAccess, by_topic, session_key
from lowtide.broker.joined_parts import JoinedParts
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ShareAcknowledgedPartition,
    ShareAcknowledgedTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from lowtide.protocol.share_state_records import SharePlace


def handler(access: ShareAccess) -> HandlerSpec:
    """Returns the handler."""
    shares = access.shares

    def handle(request: ShareAcknowledgeRequest, context: RequestContext) -> Any:
        key = session_key(request.group_id, request.member_id)
        if isinstance(key, ErrorCode):
            return failed(key)
        rules = shares.rules_of(key.group_id)
        if request.share_session_epoch == INITIAL_EPOCH:
            return failed(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = shares.sessions.follow(key, request.share_session_epoch)
        if isinstance(session, ErrorCode):
            return failed(session)
        wanted = {
            SharePlace(key.group_id, row.topic_id, each.partition_index): each.acknowledgement_batches
            for row in request.topics
            for each in row.partitions
        }
        outcome: dict[SharePlace, ErrorCode] = {}

        def respond() -> ShareAcknowledgeResponse:
            leaders = {place: access.leader_of(place, error) for place, error in outcome.items()}
            topics = [
                ShareAcknowledgedTopic(
                    topic_id=topic_id,
                    partitions=[
                        ShareAcknowledgedPartition(
                            partition_index=place.partition, error_code=outcome[place], current_leader=leaders[place]
                        )
                        for place in places
                    ],
                )
                for topic_id, places in by_topic(wanted).items()
            ]
            return ShareAcknowledgeResponse(
                acquisition_lock_timeout_ms=rules.limits.lock_duration_ms,
                responses=topics,
                node_endpoints=access.endpoints(leaders.values(), context),
            )

        joined = JoinedParts(respond)
        joined.expect(len(wanted))

        def note(place: SharePlace, error: ErrorCode) -> None:
            outcome[place] = error
            joined.arrived()

        access.acknowledge(key, wanted, context, note, renews=request.is_renew_ack)
        if request.share_session_epoch == FINAL_EPOCH:
            shares.end_session(key)
        return joined.answer()

    return HandlerSpec(key=ApiKey.SHARE_ACKNOWLEDGE, guard=for_members(failed), handle=handle)


def failed(error: ErrorCode) -> ShareAcknowledgeResponse:
    """Returns the response to a request that is refused as a whole."""
    return ShareAcknowledgeResponse(error_code=error)
