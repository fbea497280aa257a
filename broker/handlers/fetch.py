"""Fetch: v4-v18.

Behaviour: reads each partition from the offset asked for up to the high watermark (or the last stable offset), in the order of the
request, within the byte limits; the first batch is whole whatever the limits, the last one may be cut. Waits up to MaxWaitMs for
MinBytes; an unknown partition does not end the wait of the others, an error found by the read does. Records are sent from the files
as they are. A batch that straddles the log start offset is sent whole; clients drop what lies before the offset they asked for.

Version notes: v7 incremental sessions (KIP-227). v9 leader epoch of the client (KIP-320). v12 diverging epochs (KIP-595). v13 topic
ids (KIP-516). v15 has a follower's registration (KIP-903). v16 tells where the leader is (KIP-951).

Followers read up to the log end, and wait for it. Once the cluster reports log starts (KIP-107), one that tells no registration or no
leader epoch is refused. Their fetch is answered at once while there is a log start to tell them, and waits only shortly while it lacks a
partition that is led here: a follower may not know yet whom to ask (rule DR5). With a replica selector that knows racks a consumer is
sent to an in-sync replica in its own (KIP-392).

Errors: TOPIC_AUTHORIZATION_FAILED, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, NOT_LEADER_OR_FOLLOWER,
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR; for the whole request the session errors, and INVALID_REQUEST for negative
limits and unknown isolation levels.

KIPs: 74, 107, 227, 320, 392, 516, 595, 951.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from lowtide.broker.authorizer import CLUSTER, Operation, topic
from lowtide.broker.config.keys_cluster import RACK_AWARE_SELECTOR
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.fetching import GuardedFetchReader
from lowtide.broker.network.endpoints import MadeOnce, endpoints_for
from lowtide.broker.network.large_requests import COUNTED_ELSEWHERE
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.partitions.delayed.fetch import DelayedFetch
from lowtide.broker.partitions.delayed.fetch_reader import READ_COMMITTED, FetchOutcome, FetchReader, FetchRules, may_wait, respond
from lowtide.broker.partitions.fetch_session import CONSUMER, FetchPlan, FetchTarget, requested_targets
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.broker.slices import PARTITIONS_AT_ONCE, PARTITIONS_OF_A_STEP
from lowtide.broker.turns import Steps
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)

_SESSIONS_SINCE = 7

Answer = FetchResponse | Pending[FetchResponse]

SHORT_WAIT_MS = 10
"""How long a follower's fetch waits that lacks a partition."""


FOLLOWED_AT_ONCE = 2_000
"""A follower's fetch of more partitions without a session is answered without a wait. Followers have sessions."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    replicas, sessions, clock = broker.replicas, broker.sessions, broker.clock
    fetch_maximum = broker.config.fetch_max_bytes
    selects_replicas = broker.config.values["replica.selector.class"] == RACK_AWARE_SELECTOR

    readers = _Readers(broker)
    nothing_is_forbidden = broker.authorizer.allows_all

    def handle(request: FetchRequest, context: RequestContext, plan: FetchPlan | None = None) -> Answer:  # noqa: PLR0911 - ways to answer
        version = context.api_version
        if plan is None and not _is_sound(request):
            return _refuse(request, version, ErrorCode.INVALID_REQUEST)
        now_ms = clock.monotonic_ms()
        replica_id, broker_epoch = _replica_of(request)
        may_ask = replica_id < 0 or nothing_is_forbidden
        if not may_ask and not broker.authorizer.authorize(context.principal, Operation.CLUSTER_ACTION, CLUSTER):
            return _deny(request)
        if plan is None and version >= _SESSIONS_SINCE:
            opens = replica_id < 0 or replicas.is_registered(replica_id, broker_epoch)
            plan = sessions.plan(request, version, now_ms, replica_id=max(replica_id, CONSUMER), broker_epoch=broker_epoch, opens=opens)
        elif plan is None:
            plan = FetchPlan(targets=requested_targets(request).values())
        if plan.error_code != ErrorCode.NONE:
            return FetchResponse(throttle_time_ms=0, error_code=plan.error_code, session_id=0, responses=[])
        rules = FetchRules(
            api_version=version,
            read_committed=request.isolation_level == READ_COMMITTED,
            is_follower=replica_id >= 0,
            minimum_bytes=request.min_bytes,
            maximum_bytes=min(request.max_bytes, fetch_maximum),
            maximum_wait_ms=request.max_wait_ms,
            replica_id=replica_id,
            broker_epoch=broker_epoch,
            rack=request.rack_id if selects_replicas and replica_id < 0 else "",
        )
        if replica_id >= 0:
            return handle_follower(readers.of_listener[context.connection.listener_name], plan, list(plan.targets), rules, now_ms)
        reader = readers.of_listener[context.connection.listener_name] if nothing_is_forbidden else readers.for_client(context)
        must_visit_all = plan.incremental and replicas.is_fenced is not None and replicas.is_fenced()
        targets = plan.session.visit_all() if must_visit_all and plan.session is not None else list(plan.targets)
        if len(targets) > PARTITIONS_AT_ONCE:
            return DelayedFetch(reader, replicas, plan, targets, rules, now_ms + rules.maximum_wait_ms).start_in_slices()
        outcome = reader.read(targets, rules)
        if not may_wait(plan, outcome, rules):
            return respond(plan, outcome, rules, reader)
        delayed = DelayedFetch(reader, replicas, plan, targets, rules, now_ms + rules.maximum_wait_ms)
        return delayed.pending if delayed.park() else respond(plan, outcome, rules, reader)

    def handle_follower(reader: FetchReader, plan: FetchPlan, targets: list[FetchTarget], rules: FetchRules, now_ms: int) -> Answer:
        session = plan.session
        is_known = replicas.may_be_registered(rules.replica_id, rules.broker_epoch)
        if session is not None and not is_known:
            targets = session.visit_all()
        if len(targets) > (FOLLOWED_AT_ONCE if session is None else PARTITIONS_AT_ONCE):
            settle = partial(_settle_follower, replicas, plan, rules, now_ms)
            return DelayedFetch(reader, replicas, plan, targets, rules, now_ms).start_in_slices(settle, notes=True)
        outcome = reader.read(targets, rules, notes=True)
        if session is not None and is_known:
            session.times.last_ms = now_ms
        if not may_wait(plan, outcome, rules):
            return respond(plan, outcome, rules, reader)
        fetched = outcome.noted if session is None else session.followed_count
        lacks_some = replicas.led.lacks_some(rules.replica_id, fetched, now_ms)
        wait_ms = min(rules.maximum_wait_ms, SHORT_WAIT_MS) if lacks_some else rules.maximum_wait_ms
        delayed = DelayedFetch(reader, replicas, plan, targets, rules, now_ms + wait_ms)
        return delayed.pending if delayed.park() else respond(plan, outcome, rules, reader)

    return HandlerSpec(key=ApiKey.FETCH, handle=handle, handle_steps=partial(_steps, broker, handle), sends_records=True)


def _steps(
    broker: BrokerContext,
    handle: Callable[[FetchRequest, RequestContext, FetchPlan], Answer],
    request: FetchRequest,
    context: RequestContext,
) -> Steps:
    """As `handle`, which gets the plan, for a request of very many partitions."""
    version, replicas = context.api_version, broker.replicas
    is_sound = yield from _is_sound_in_steps(request)
    if not is_sound and version >= _SESSIONS_SINCE:
        return _refuse(request, version, ErrorCode.INVALID_REQUEST)
    if not is_sound:
        topics = yield from _failed_in_steps(request, ErrorCode.INVALID_REQUEST)
        return FetchResponse(throttle_time_ms=0, session_id=0, responses=topics)
    replica_id, broker_epoch = _replica_of(request)
    if replica_id >= 0 and not broker.authorizer.authorize(context.principal, Operation.CLUSTER_ACTION, CLUSTER):
        topics = yield from _failed_in_steps(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return FetchResponse(throttle_time_ms=0, session_id=0, responses=topics)
    plan = yield from broker.sessions.plan_steps(
        request,
        version,
        broker.clock.monotonic_ms(),
        replica_id=max(replica_id, CONSUMER),
        broker_epoch=broker_epoch,
        opens=version >= _SESSIONS_SINCE and (replica_id < 0 or replicas.is_registered(replica_id, broker_epoch)),
    )
    held = replicas.slices.held
    answer = handle(request, context, plan)
    if replicas.slices.held > held:
        yield COUNTED_ELSEWHERE
    return answer


def _settle_follower(replicas: ReplicaManager, plan: FetchPlan, rules: FetchRules, now_ms: int, outcome: FetchOutcome) -> int:
    """A follower's fetch of many partitions is noted, all of it: from now on it counts for those too that the next doesn't name.

    Returns until when it may wait.
    """
    if plan.session is not None and replicas.may_be_registered(rules.replica_id, rules.broker_epoch):
        plan.session.times.last_ms = max(now_ms, plan.session.times.last_ms)
    fetched = outcome.noted if plan.session is None else plan.session.followed_count
    lacks_some = replicas.led.lacks_some(rules.replica_id, fetched, now_ms)
    return now_ms + (min(rules.maximum_wait_ms, SHORT_WAIT_MS) if lacks_some else rules.maximum_wait_ms)


class _Readers:
    """Who reads for whom."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self.of_listener = MadeOnce(lambda listener_name: FetchReader(*self._parts(listener_name)))

    def for_client(self, context: RequestContext) -> FetchReader:
        """One that asks what this client may read."""

        def may_read(name: str) -> bool:
            return self._broker.authorizer.authorize(context.principal, Operation.READ, topic(name))

        return GuardedFetchReader(may_read, *self._parts(context.connection.listener_name))

    def _parts(self, listener_name: str) -> tuple[Any, ...]:
        metadata = self._broker.metadata
        endpoints = partial(_node_endpoints, metadata, listener_name)
        return self._broker.replicas, endpoints, lambda: metadata.broker_epoch, self._broker.clock.monotonic_ms


def _node_endpoints(metadata: MetadataSession, listener_name: str) -> list[NodeEndpoint]:
    """Where clients of a listener reach the brokers (KIP-951)."""
    image = metadata.image
    return [
        NodeEndpoint(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack)
        for broker_id, endpoint in endpoints_for(image, listener_name).items()
    ]


def _is_sound(request: FetchRequest) -> bool:
    """Whether limits and isolation level mean anything."""
    if request.isolation_level not in (0, READ_COMMITTED) or request.max_bytes < 0:
        return False
    return all(row.partition_max_bytes >= 0 for topic in request.topics for row in topic.partitions)


def _replica_of(request: FetchRequest) -> tuple[int, int]:
    """Who fetches, and under which registration, as far as the version tells it."""
    state = request.replica_state
    return (request.replica_id, -1) if state is None else (state.replica_id, state.replica_epoch)


def _is_sound_in_steps(request: FetchRequest) -> Generator[None, None, bool]:
    if request.isolation_level not in (0, READ_COMMITTED) or request.max_bytes < 0:
        return False
    for wanted in request.topics:
        for start in range(0, len(wanted.partitions), PARTITIONS_AT_ONCE):
            if any(row.partition_max_bytes < 0 for row in wanted.partitions[start : start + PARTITIONS_AT_ONCE]):
                return False
            yield
    return True


def _failed_in_steps(request: FetchRequest, error: ErrorCode) -> Generator[None, None, list[FetchableTopicResponse]]:
    topics: list[FetchableTopicResponse] = []
    for wanted in request.topics:
        topics.append(FetchableTopicResponse(topic=wanted.topic, topic_id=wanted.topic_id, partitions=[]))
        for start in range(0, len(wanted.partitions), PARTITIONS_OF_A_STEP):
            topics[-1].partitions += _failed(wanted.partitions[start : start + PARTITIONS_OF_A_STEP], error)
            yield
    return topics


def _failed(rows: Iterable[FetchPartition], error: ErrorCode) -> list[PartitionData]:
    return [PartitionData(partition_index=row.partition, error_code=error, high_watermark=-1, records=b"") for row in rows]


def _deny(request: FetchRequest) -> FetchResponse:
    """The client claims to be a replica without permission. The error is in each partition, as in Kafka."""
    return _failed_throughout(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _refuse(request: FetchRequest, version: int, error: ErrorCode) -> FetchResponse:
    """Where the version has no error of its own for the request, each partition carries it."""
    if version >= _SESSIONS_SINCE:
        return FetchResponse(throttle_time_ms=0, error_code=error, session_id=0, responses=[])
    return _failed_throughout(request, error)


def _failed_throughout(request: FetchRequest, error: ErrorCode) -> FetchResponse:
    topics = [
        FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=_failed(topic.partitions, error))
        for topic in request.topics
    ]
    return FetchResponse(throttle_time_ms=0, session_id=0, responses=topics)
