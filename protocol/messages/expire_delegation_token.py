"""ExpireDelegationToken (key 40): an earlier end for a token (KIP-48).

Field by field this is Kafka's ExpireDelegationTokenRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Int64, Versions


class ExpireDelegationTokenRequest(ApiMessage, kw_only=True):
    """The token by its HMAC. `expiry_time_period_ms`: in how long it shall end; below 0 it is removed at once."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("2+")

    hmac: Bytes
    expiry_time_period_ms: Int64

    def __repr__(self) -> str:
        """Without the HMAC, which is the token's password."""
        return f"ExpireDelegationTokenRequest({self.expiry_time_period_ms})"


class ExpireDelegationTokenResponse(ApiMessage, kw_only=True):
    """When the token ends now; -1 with an error."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("2+")

    error_code: Int16
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0
