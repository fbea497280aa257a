"""SaslHandshake (key 17): chooses the SASL mechanism.

After version 1 SaslAuthenticate follows (KIP-152), after version 0 bare tokens.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, String, Versions


class SaslHandshakeRequest(ApiMessage, kw_only=True):
    """The mechanism, such as `SCRAM-SHA-256`."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("2+")

    mechanism: String


class SaslHandshakeResponse(ApiMessage, kw_only=True):
    """The mechanisms of the listener."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("2+")

    error_code: Int16
    mechanisms: list[String]
