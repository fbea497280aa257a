"""SaslHandshake (key 17): chooses the SASL mechanism.

After version 1 SaslAuthenticate follows (KIP-152), after version 0 bare tokens.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, String, versions


@versions("0-1", flexible="2+")
class SaslHandshakeRequest(ApiMessage, kw_only=True):
    """The mechanism, such as `SCRAM-SHA-256`."""

    mechanism: String


@versions("0-1", flexible="2+")
class SaslHandshakeResponse(ApiMessage, kw_only=True):
    """The mechanisms of the listener."""

    error_code: Int16
    mechanisms: list[String]
