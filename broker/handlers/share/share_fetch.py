"""ShareFetch: v1-v2.

Behaviour: a member acquires records from the partitions of its share session that are led here, and may acknowledge
earlier ones. A session begins with epoch 0, in place of an earlier one; each further request has the next epoch, adds
partitions and forgets others. The final epoch closes it: the member's records become available again, and the delivery
is counted. The request waits up to MaxWaitMs for MinBytes. The response has partitions with acknowledgements, errors or
records. Records come in whole batches; the member must ignore those that AcquiredRecords don't name. Records that
failed often are returned apart from others and fewer at a time, at the last attempt alone. Each fetch begins with
another partition.

Version notes: v2 may keep to MaxRecords (ShareAcquireMode 1, KIP-1206), or only renew locks (IsRenewAck, KIP-1222).

Errors: GROUP_AUTHORIZATION_FAILED, INVALID_REQUEST, SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH,
SHARE_SESSION_LIMIT_REACHED; of partitions TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR; of their acknowledgements those of ShareAcknowledge.

KIPs: 932, 951, 1206, 1222.
"""

from __future__ import annotations

from typing import Any, Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import for_members
from lowtide.broker.handlers.share.share_access import ShareAccess, by_topic, session_key
from lowtide.broker.joined_parts import JoinedParts
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.share.share_fetch import FetchedShare, ShareFetch, ShareFetchParams
from lowtide.broker.partitions.share.share_reading import ShareRead
from lowtide.broker.partitions.share.share_sessions import SessionKey, ShareSession
from lowtide.broker.quotas.metered_handlers import share_fetched_bytes as answer_bytes
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.share_acknowledge import FINAL_EPOCH, INITIAL_EPOCH, ShareAcknowledgementBatch
from lowtide.protocol.messages.share_fetch import (
    ShareAcquiredRecords,
    ShareFetchedPartition,
    ShareFetchedTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from lowtide.protocol.share_state_records import SharePlace

WHOLE_BATCHES: Final = 0
RECORD_LIMIT: Final = 1
"""Values of ShareAcquireMode."""


def handler(broker: BrokerContext, access: ShareAccess) -> HandlerSpec:
    """Returns the handler."""
    shares = access.shares

    def handle(request: ShareFetchRequest, context: RequestContext) -> Any:
        key = session_key(request.group_id, request.member_id)
        if isinstance(key, ErrorCode):
            return failed(key)
        rules = shares.rules_of(key.group_id)
        rows = {
            SharePlace(key.group_id, row.topic_id, each.partition_index): each
            for row in request.topics
            for each in row.partitions
        }
        acknowledged = {
            place: each.acknowledgement_batches for place, each in rows.items() if each.acknowledgement_batches
        }
        if not is_sound(request, acknowledged):
            return failed(ErrorCode.INVALID_REQUEST)
        session = follow(request, key, list(rows), context)
        if isinstance(session, ErrorCode):
            return failed(session)
        answer = _FetchAnswer(access, context, rules.limits.lock_duration_ms)
        answer.joined.expect(len(acknowledged))
        access.acknowledge(key, acknowledged, context, answer.on_acknowledged, renews=request.is_renew_ack)
        if request.share_session_epoch == FINAL_EPOCH:
            shares.end_session(key)
        elif not request.is_renew_ack:
            fetch(session, request, context, answer)
        return answer.joined.answer()

    def follow(
        request: ShareFetchRequest, key: SessionKey, places: list[SharePlace], context: RequestContext
    ) -> ShareSession | ErrorCode:
        forgotten = [
            SharePlace(key.group_id, row.topic_id, number)
            for row in request.forgotten_topics_data
            for number in row.partitions
        ]
        return shares.follow_session(key, request.share_session_epoch, context.connection, places, forgotten)

    def fetch(session: ShareSession, request: ShareFetchRequest, context: RequestContext, answer: _FetchAnswer) -> None:
        targets = []
        for place in session.next_turn():
            share = access.find(place, context, begins=True)
            if isinstance(share, ErrorCode):
                answer.row(place).error_code = share
            else:
                targets.append(share)
        maximum_bytes = min(request.max_bytes, broker.config.fetch_max_bytes)
        if not targets or request.max_records <= 0 or maximum_bytes <= 0:
            return
        wanted = ShareFetchParams(
            member_id=session.key.member_id,
            records_max=request.max_records,
            batch_size=max(request.batch_size, 1),
            is_strict=request.share_acquire_mode == RECORD_LIMIT,
            minimum_bytes=min(request.min_bytes, maximum_bytes),
            maximum_bytes=maximum_bytes,
            may_wait=request.max_wait_ms > 0,
            deadline_ms=broker.clock.monotonic_ms() + max(request.max_wait_ms, 0),
        )
        answer.joined.expect(1)
        found = ShareFetch(targets, wanted, broker.replicas, shares.fetches).start()
        found.listen(answer.on_fetched)
        if not found.done:
            answer.joined.pending.on_abandoned = found.abandon

    return HandlerSpec(key=ApiKey.SHARE_FETCH, guard=for_members(failed), handle=handle, answer_bytes=answer_bytes)


def is_sound(request: ShareFetchRequest, acknowledged: dict[SharePlace, list[ShareAcknowledgementBatch]]) -> bool:
    """Returns whether the fields agree: the first request acknowledges nothing, a renewal asks for no records."""
    if request.share_session_epoch == INITIAL_EPOCH and acknowledged:
        return False
    if request.share_acquire_mode not in (WHOLE_BATCHES, RECORD_LIMIT):
        return False
    if not request.is_renew_ack:
        return True
    return not (request.max_bytes or request.min_bytes or request.max_records or request.max_wait_ms)


def failed(error: ErrorCode) -> ShareFetchResponse:
    """Returns the response to a request that is refused as a whole."""
    return ShareFetchResponse(error_code=error)


class _FetchAnswer:
    """Collects the rows of a response."""

    def __init__(self, access: ShareAccess, context: RequestContext, lock_ms: int) -> None:
        self.joined: JoinedParts[ShareFetchResponse] = JoinedParts(self._make)
        self._access = access
        self._context = context
        self._lock_ms = lock_ms
        self._rows: dict[SharePlace, ShareFetchedPartition] = {}

    def row(self, place: SharePlace) -> ShareFetchedPartition:
        """Returns the row of a partition."""
        row = self._rows.get(place)
        if row is None:
            row = self._rows[place] = ShareFetchedPartition(partition_index=place.partition)
        return row

    def on_acknowledged(self, place: SharePlace, error: ErrorCode) -> None:
        """Adds the outcome of a partition's acknowledgements."""
        self.row(place).acknowledge_error_code = error
        self.joined.arrived()

    def on_fetched(self, found: list[FetchedShare] | None) -> None:
        """Adds the records; None if the fetch has failed, which is logged."""
        if found is None:
            self.joined.pending.fail()
            return
        for share, read in found:
            row = self.row(share.place)
            if isinstance(read, ShareRead):
                row.records = read.records if read.records is not None else b""
                row.acquired_records = [
                    ShareAcquiredRecords(
                        first_offset=each.first_offset, last_offset=each.last_offset, delivery_count=each.delivery_count
                    )
                    for each in read.acquired
                ]
            else:
                row.error_code = read
        self.joined.arrived()

    def _make(self) -> ShareFetchResponse:
        leaders = []
        for place, row in self._rows.items():
            row.current_leader = self._access.leader_of(place, row.error_code or row.acknowledge_error_code)
            leaders.append(row.current_leader)
        return ShareFetchResponse(
            acquisition_lock_timeout_ms=self._lock_ms,
            responses=[
                ShareFetchedTopic(topic_id=topic_id, partitions=[self._rows[place] for place in places])
                for topic_id, places in by_topic(self._rows).items()
            ],
            node_endpoints=self._access.endpoints(leaders, self._context),
        )
