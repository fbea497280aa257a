"""ExpireDelegationToken (key 40): ends a token earlier (KIP-48)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Int64, versions


@versions("1-2", flexible="2+")
class ExpireDelegationTokenRequest(ApiMessage, kw_only=True):
    """The token by its HMAC, and the time until its expiry; a negative time removes it at once."""

    hmac: Bytes
    expiry_time_period_ms: Int64

    def __repr__(self) -> str:
        """Without the HMAC, which is the token's password."""
        return f"ExpireDelegationTokenRequest({self.expiry_time_period_ms})"


@versions("1-2", flexible="2+")
class ExpireDelegationTokenResponse(ApiMessage, kw_only=True):
    """The expiry time of the token; -1 on error."""

    error_code: Int16
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0
