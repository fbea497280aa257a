"""PushTelemetry (key 72): a client's metrics, as compressed OTLP `MetricsData` (KIP-714)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int8, Int16, Int32, Uuid, versions


@versions("0", flexible="0+")
class PushTelemetryRequest(ApiMessage, kw_only=True):
    """`terminating` marks the client's last push, which is allowed before the interval ends."""

    client_instance_id: Uuid
    subscription_id: Int32
    terminating: Bool
    compression_type: Int8
    metrics: Bytes


@versions("0", flexible="0+")
class PushTelemetryResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32
    error_code: Int16
