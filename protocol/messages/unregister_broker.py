"""UnregisterBroker (key 64): removes a broker that will not return (KIP-631)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, Int32, String, versions


@versions("0", flexible="0+")
class UnregisterBrokerRequest(ApiMessage, kw_only=True):
    broker_id: Int32


@versions("0", flexible="0+")
class UnregisterBrokerResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
