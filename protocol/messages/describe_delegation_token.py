"""DescribeDelegationToken (key 41): the tokens that a client can see, with their HMACs (KIP-48, KIP-373)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Int64, Message, String, Versions, versions


class DescribeDelegationTokenOwner(Message, kw_only=True):
    """A principal whose tokens are requested: those that it owns, requested, or can renew."""

    principal_type: String
    principal_name: String


@versions("1-3", flexible="2+")
class DescribeDelegationTokenRequest(ApiMessage, kw_only=True):
    """Null requests all tokens, an empty list none."""

    owners: list[DescribeDelegationTokenOwner] | None


class DescribedDelegationTokenRenewer(Message, kw_only=True):
    """A principal that can renew and expire the token besides its owner."""

    principal_type: String
    principal_name: String


class DescribedDelegationToken(Message, kw_only=True):
    """Times are milliseconds since 1970."""

    principal_type: String
    principal_name: String
    token_requester_principal_type: Annotated[String, Versions("3+")] = ""
    token_requester_principal_name: Annotated[String, Versions("3+")] = ""
    issue_timestamp: Int64
    expiry_timestamp: Int64
    max_timestamp: Int64
    token_id: String
    hmac: Bytes
    renewers: list[DescribedDelegationTokenRenewer]

    def __repr__(self) -> str:
        """Without the HMAC, which is the token's password."""
        return f"DescribedDelegationToken({self.token_id!r})"


@versions("1-3", flexible="2+")
class DescribeDelegationTokenResponse(ApiMessage, kw_only=True):
    """The requested tokens that the client can see."""

    error_code: Int16
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32 = 0
