"""CreateDelegationToken (key 38): creates a token that logs in as its owner (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Int64, Message, String, Versions, versions


class CreatableRenewer(Message, kw_only=True):
    """A principal that can renew and expire the token besides its owner."""

    principal_type: String
    principal_name: String


@versions("1-3", flexible="2+")
class CreateDelegationTokenRequest(ApiMessage, kw_only=True):
    """Without an owner the token is for the client itself. `max_lifetime_ms` -1 is the broker's maximum."""

    owner_principal_type: Annotated[String | None, Versions("3+")] = None
    owner_principal_name: Annotated[String | None, Versions("3+")] = None
    renewers: list[CreatableRenewer]
    max_lifetime_ms: Int64


@versions("1-3", flexible="2+")
class CreateDelegationTokenResponse(ApiMessage, kw_only=True):
    """Times are milliseconds since 1970; with an error they are -1, and the id and the HMAC are empty."""

    error_code: Int16
    principal_type: String
    principal_name: String
    token_requester_principal_type: Annotated[String, Versions("3+")] = ""
    token_requester_principal_name: Annotated[String, Versions("3+")] = ""
    issue_timestamp_ms: Int64 = -1
    expiry_timestamp_ms: Int64 = -1
    max_timestamp_ms: Int64 = -1
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0

    def __repr__(self) -> str:
        """Without the HMAC, which is the token's password."""
        return f"CreateDelegationTokenResponse({self.error_code}, {self.token_id!r})"
