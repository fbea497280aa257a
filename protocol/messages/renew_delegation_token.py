"""RenewDelegationToken (key 39): extends the lifetime of a token (KIP-48)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Int64, versions


@versions("1-2", flexible="2+")
class RenewDelegationTokenRequest(ApiMessage, kw_only=True):
    """The token by its HMAC, and its new lifetime from now; -1 is the broker's default."""

    hmac: Bytes
    renew_period_ms: Int64

    def __repr__(self) -> str:
        """Without the HMAC, which is the token's password."""
        return f"RenewDelegationTokenRequest({self.renew_period_ms})"


@versions("1-2", flexible="2+")
class RenewDelegationTokenResponse(ApiMessage, kw_only=True):
    """The expiry time of the token; -1 on error."""

    error_code: Int16
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0
