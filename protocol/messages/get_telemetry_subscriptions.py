"""GetTelemetrySubscriptions (key 71): which of its metrics a client is to push, how often, and how."""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, String, Uuid, Versions


class GetTelemetrySubscriptionsRequest(ApiMessage, kw_only=True):
    """The instance's id as a broker gave it; zeros ask for one."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    client_instance_id: Uuid


class GetTelemetrySubscriptionsResponse(ApiMessage, kw_only=True):
    """What is wanted: metrics whose names begin with one of `requested_metrics`, all for `*`, none for an empty list."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32
    error_code: Int16
    client_instance_id: Uuid
    subscription_id: Int32
    accepted_compression_types: list[Int8]
    push_interval_ms: Int32
    telemetry_max_bytes: Int32
    delta_temporality: Bool
    requested_metrics: list[String]
