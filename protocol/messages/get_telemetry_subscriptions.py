"""GetTelemetrySubscriptions (key 71): which metrics a client must push, how often, and how (KIP-714)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, String, Uuid, versions


@versions("0", flexible="0+")
class GetTelemetrySubscriptionsRequest(ApiMessage, kw_only=True):
    """The client instance id that a broker assigned; zeros request one."""

    client_instance_id: Uuid


@versions("0", flexible="0+")
class GetTelemetrySubscriptionsResponse(ApiMessage, kw_only=True):
    """The prefixes of the metrics to push: `*` for all, an empty list for none."""

    throttle_time_ms: Int32
    error_code: Int16
    client_instance_id: Uuid
    subscription_id: Int32
    accepted_compression_types: list[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: Bool
    requested_metrics: list[String]
