"""Fetch: v4-v18.

Behaviour: reads each partition from the offset asked for up to the high watermark (or the last stable offset), in the
order of the request, within the byte limits; the first batch is whole whatever the limits, the last one may be cut.
Waits up to MaxWaitMs for MinBytes; an unknown partition does not end the wait of the others, an error found by the read
does. Records are sent from the files as they are. A batch that straddles the log start offset is sent whole; clients
drop what lies before the offset they asked for.

Version notes: v7 incremental sessions (KIP-227). v9 leader epoch of the client (KIP-320). v12 diverging epochs
(KIP-595). v13 topic ids (KIP-516). v15 has a follower's registration (KIP-903). v16 tells where the leader is
(KIP-951).

Followers read up to the log end, and wait for it. Once the cluster reports log starts (KIP-107), one that tells no
registration or no leader epoch is refused. Their fetch is answered at once while there is a log start to tell them, and
waits only shortly while it lacks a partition that is led here: a follower may not know yet whom to ask (rule DR5). With
a replica selector that knows racks a consumer is sent to an in-sync replica in its own (KIP-392).

The room of the act is `broker/partitions/fetch`: `fetch_reader` reads, `delayed_fetch` waits for more, and
`usual_fetch`
is a short form of what consumers ask most.

Errors: TOPIC_AUTHORIZATION_FAILED, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR; for the whole request the
session errors, and INVALID_REQUEST for negative limits and unknown isolation levels.

KIPs: 74, 107, 227, 320, 392, 516, 595, 951.
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.config.keys_cluster import RACK_AWARE_SELECTOR
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.fetching import FetchReaders
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.fetch.delayed_fetch import PlannedFetches
from lowtide.broker.partitions.fetch.fetch_reader import READ_COMMITTED, is_sound, replica_of
from lowtide.broker.partitions.fetch.fetch_refused import SESSIONS_SINCE, failed_throughout, refuse
from lowtide.broker.partitions.fetch.fetch_rules import FetchRules
from lowtide.broker.partitions.fetch.fetch_session import CONSUMER, FetchPlan, requested_targets
from lowtide.broker.partitions.fetch.usual_fetch import UsualFetch
from lowtide.broker.quotas.metered_handlers import fetched_bytes
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchRequest


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over a broker's state."""
    replicas, sessions, clock, fetch_maximum = (
        broker.replicas,
        broker.sessions,
        broker.clock,
        broker.config.fetch_max_bytes,
    )
    selects_replicas = broker.config.values["replica.selector.class"] == RACK_AWARE_SELECTOR
    planned = PlannedFetches(replicas)
    readers, nothing_is_forbidden = FetchReaders(broker), broker.authorizer.allows_all

    def handle(request: FetchRequest, context: RequestContext) -> Any:
        version = context.api_version
        now_ms = clock.monotonic_ms()
        replica_id, broker_epoch = replica_of(request)
        if (
            replica_id >= 0
            and not nothing_is_forbidden
            and not broker.authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER)
        ):
            return failed_throughout(
                request, ErrorCode.TOPIC_AUTHORIZATION_FAILED, replicas.traffic.errors
            )  # As Kafka does.
        context.connection.of_a_follower = replica_id >= 0
        if version >= SESSIONS_SINCE:
            opens = replica_id < 0 or replicas.is_registered(replica_id, broker_epoch)
            plan = sessions.plan(
                request, version, now_ms, replica_id=max(replica_id, CONSUMER), broker_epoch=broker_epoch, opens=opens
            )
        else:
            plan = FetchPlan(targets=requested_targets(request).values())
        if plan.error_code != ErrorCode.NONE:
            return refuse(request, version, ErrorCode(plan.error_code), replicas.traffic.errors)
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
        sees_all = nothing_is_forbidden or replica_id >= 0
        reader = readers.of_listener[context.connection.listener_name] if sees_all else readers.for_client(context)
        if replica_id >= 0:
            return planned.of_follower(reader, plan, list(plan.targets), rules, now_ms)
        must_visit_all = plan.incremental and replicas.is_fenced is not None and replicas.is_fenced()
        targets = plan.session.visit_all() if must_visit_all and plan.session is not None else list(plan.targets)
        return planned.of_consumer(reader, plan, targets, rules, now_ms)

    usual = UsualFetch(
        replicas=replicas,
        sessions=sessions,
        clock=clock,
        may_read=None if nothing_is_forbidden else readers.may_read,
        maximum_bytes=fetch_maximum,
        selects_replicas=selects_replicas,
    )
    # Where what is allowed is audited, the definition asks once for each topic.
    answer_usual = None if broker.authorizer.audits_allowed else usual.answer

    def handle_either(request: FetchRequest, context: RequestContext) -> Any:
        if not is_sound(request):
            return refuse(request, context.api_version, ErrorCode.INVALID_REQUEST, replicas.traffic.errors)
        answer = None if answer_usual is None else answer_usual(request, context)
        return handle(request, context) if answer is None else answer

    return HandlerSpec(
        key=ApiKey.FETCH,
        guard=CHECKS_ITSELF,
        handle=handle_either,
        counts_errors=True,
        answer_bytes=fetched_bytes,
    )
