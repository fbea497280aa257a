"""GetTelemetrySubscriptions: v0-v0.

Behaviour: returns which metrics a client should push and how often: the union of all subscriptions whose patterns match
the client (`client-metrics` of IncrementalAlterConfigs). A client instance without an id gets one. Without a matching
subscription the list is empty, and the client asks again after five minutes. Counters are cumulative (no delta
temporality), so that a lost push loses nothing; Kafka requests deltas.

Errors: THROTTLING_QUOTA_EXCEEDED for a request before its time.

KIPs: 714.
"""

from __future__ import annotations

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.broker.telemetry.client_facts import facts_of
from lowtide.broker.telemetry.client_instances import COMPRESSIONS
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)

_NO_ID = bytes(16)


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""
    clients = broker.clients

    def handle(request: GetTelemetrySubscriptionsRequest, context: RequestContext) -> GetTelemetrySubscriptionsResponse:
        instance_id = request.client_instance_id
        if instance_id == _NO_ID:
            instance_id = broker.random.randbytes(16)
        clients.follow(broker.metadata.image.client_metrics)
        wanted = clients.ask(instance_id, facts_of(instance_id, context), broker.clock.monotonic_ms())
        if isinstance(wanted, ErrorCode):
            return GetTelemetrySubscriptionsResponse(
                throttle_time_ms=0,
                error_code=wanted,
                client_instance_id=_NO_ID,
                subscription_id=0,
                accepted_compression_types=[],
                push_interval_ms=0,
                telemetry_max_bytes=0,
                delta_temporality=False,
                requested_metrics=[],
            )
        return GetTelemetrySubscriptionsResponse(
            throttle_time_ms=0,
            error_code=ErrorCode.NONE,
            client_instance_id=instance_id,
            subscription_id=wanted.subscription_id,
            accepted_compression_types=list(COMPRESSIONS),
            push_interval_ms=wanted.interval_ms,
            telemetry_max_bytes=telemetry_max_bytes(broker),
            delta_temporality=False,
            requested_metrics=list(wanted.metrics),
        )

    return HandlerSpec(key=ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, guard=FOR_EVERYONE, handle=handle)


def telemetry_max_bytes(broker: BrokerContext) -> int:
    """Returns the maximum size of a compressed push."""
    value = broker.config.values["telemetry.max.bytes"]
    assert isinstance(value, int)
    return value
