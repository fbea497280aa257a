"""RenewDelegationToken (key 39): a later end for a token (KIP-48).

Field by field this is Kafka's RenewDelegationTokenRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Int64, Versions


class RenewDelegationTokenRequest(ApiMessage, kw_only=True):
    """The token by its HMAC.

    `renew_period_ms`: how long it shall last from now on; -1 stands for the broker's own period.
    """

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("2+")

    hmac: Bytes
    renew_period_ms: Int64

    def __repr__(self) -> str:
        """Without the HMAC, which is the token's password."""
        return f"RenewDelegationTokenRequest({self.renew_period_ms})"


class RenewDelegationTokenResponse(ApiMessage, kw_only=True):
    """When the token ends now; -1 with an error."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("2+")

    error_code: Int16
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0
