"""UnregisterBroker (key 64): removes a broker that will not return (KIP-631)."""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, String, Versions


class UnregisterBrokerRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    broker_id: Int32


class UnregisterBrokerResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
