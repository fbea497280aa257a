"""Fetch: v4-v18.

Behaviour: reads each partition from the offset asked for up to the high watermark (or the last stable offset), in the order of the
request, within the byte limits; the first batch is whole whatever the limits, the last one may be cut. Waits up to MaxWaitMs for
MinBytes; an unknown partition does not end the wait of the others, an error found by the read does. Records are sent from the files
as they are. A batch that straddles the log start offset is sent whole; clients drop what lies before the offset they asked for.

Version notes: v7 incremental sessions (KIP-227). v9 leader epoch of the client (KIP-320). v12 diverging epochs (KIP-595). v13 topic
ids (KIP-516). v16 tells where the leader is (KIP-951). Replica ids are refused until brokers replicate.

Errors: OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR; for the whole request the session errors, and INVALID_REQUEST for negative limits and
unknown isolation levels.

KIPs: 74, 107, 227, 320, 392, 516, 595, 951.
"""

from __future__ import annotations

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.delayed.fetch import READ_COMMITTED, DelayedFetch, FetchReader, FetchRules, respond
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.fetch_session import FetchPlan, requested_targets
from lowtide.broker.pending import Pending
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, NodeEndpoint, PartitionData

_SESSIONS_SINCE = 7


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    replicas, sessions, clock = broker.replicas, broker.sessions, broker.clock
    fetch_maximum = broker.config.fetch_max_bytes

    def endpoints() -> list[NodeEndpoint]:
        image = broker.metadata.image
        return [
            NodeEndpoint(node_id=node.broker_id, host=node.listeners[0].host, port=node.listeners[0].port, rack=node.rack)
            for node in image.brokers.values()
        ]

    reader = FetchReader(replicas, endpoints)

    def handle(request: FetchRequest, context: RequestContext) -> FetchResponse | Pending[FetchResponse]:
        version = context.api_version
        if not _is_sound(request):
            return _refuse(request, version, ErrorCode.INVALID_REQUEST)
        now_ms = clock.monotonic_ms()
        if version >= _SESSIONS_SINCE:
            plan = sessions.plan(request, version, now_ms)
            if plan.error_code != ErrorCode.NONE:
                return FetchResponse(throttle_time_ms=0, error_code=plan.error_code, session_id=0, responses=[])
        else:
            plan = FetchPlan(targets=requested_targets(request).values())
        replica_id = request.replica_id if request.replica_state is None else request.replica_state.replica_id
        rules = FetchRules(
            api_version=version,
            read_committed=request.isolation_level == READ_COMMITTED,
            is_follower=replica_id >= 0,
            minimum_bytes=request.min_bytes,
            maximum_bytes=min(request.max_bytes, fetch_maximum),
            maximum_wait_ms=request.max_wait_ms,
        )
        targets = list(plan.targets)
        outcome = reader.read(targets, rules)
        if outcome.read_bytes >= rules.minimum_bytes or outcome.ends_wait or outcome.waitable == 0 or rules.maximum_wait_ms <= 0:
            return respond(plan, outcome, rules, reader)
        delayed = DelayedFetch(reader, replicas, plan, targets, rules, now_ms + rules.maximum_wait_ms)
        if not replicas.fetches.watch(delayed):
            return respond(plan, outcome, rules, reader)
        return delayed.pending

    return HandlerSpec(key=ApiKey.FETCH, handle=handle, sends_records=True)


def _is_sound(request: FetchRequest) -> bool:
    """Whether limits and isolation level mean anything."""
    if request.isolation_level not in (0, READ_COMMITTED) or request.max_bytes < 0:
        return False
    return all(row.partition_max_bytes >= 0 for topic in request.topics for row in topic.partitions)


def _refuse(request: FetchRequest, version: int, error: int) -> FetchResponse:
    """Where the version has no error of its own for the request, each partition carries it."""
    if version >= _SESSIONS_SINCE:
        return FetchResponse(throttle_time_ms=0, error_code=error, session_id=0, responses=[])
    return FetchResponse(
        throttle_time_ms=0,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(partition_index=row.partition, error_code=error, high_watermark=-1, records=b"")
                    for row in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
