"""SaslHandshake (key 17): which SASL mechanism the client wants, and which the broker has.

Version 1 says that SaslAuthenticate follows (KIP-152), after version 0 bare tokens do. Field by field this is Kafka's
SaslHandshakeRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, String, Versions


class SaslHandshakeRequest(ApiMessage, kw_only=True):
    """The mechanism, as `SCRAM-SHA-256`."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("2+")

    mechanism: String


class SaslHandshakeResponse(ApiMessage, kw_only=True):
    """The mechanisms that the broker's listener has."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("2+")

    error_code: Int16
    mechanisms: list[String]
