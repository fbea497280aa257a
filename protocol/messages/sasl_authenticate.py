"""SaslAuthenticate (key 36): exchanges one token of the mechanism from SaslHandshake (KIP-152).

From version 1 the last response has the lifetime of the session (KIP-368).
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int64, String, Versions, versions


@versions("0-2", flexible="2+")
class SaslAuthenticateRequest(ApiMessage, kw_only=True):
    """The client's SASL token."""

    auth_bytes: Bytes


@versions("0-2", flexible="2+")
class SaslAuthenticateResponse(ApiMessage, kw_only=True):
    """The broker's SASL token, or why authentication failed."""

    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Versions("1+")] = 0
