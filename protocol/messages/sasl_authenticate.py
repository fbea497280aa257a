"""SaslAuthenticate (key 36): one token of the mechanism that SaslHandshake agreed on, each way (KIP-152).

From version 1 on the last answer says for how long the authentication holds (KIP-368). Field by field this is Kafka's
SaslAuthenticateRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int64, String, Versions


class SaslAuthenticateRequest(ApiMessage, kw_only=True):
    """A token of the client's."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    auth_bytes: Bytes


class SaslAuthenticateResponse(ApiMessage, kw_only=True):
    """A token of the broker's, or why it doesn't believe the client."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    error_code: Int16
    error_message: String | None
    auth_bytes: Bytes
    session_lifetime_ms: Annotated[Int64, Versions("1+")] = 0
