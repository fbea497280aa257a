"""PushTelemetry (key 72): a client's metrics, as compressed OTLP `MetricsData` (KIP-714)."""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int8, Int16, Int32, Uuid, Versions


class PushTelemetryRequest(ApiMessage, kw_only=True):
    """`terminating` marks the client's last push, which is allowed before the interval ends."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    client_instance_id: Uuid
    subscription_id: Int32
    terminating: Bool
    compression_type: Int8
    metrics: Bytes


class PushTelemetryResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32
    error_code: Int16
