"""SaslHandshake: v0-v1.

Behaviour: refuses handshakes on a listener without SASL, after a login that never expires, or within a second of the
previous one. `network/sasl_connection` answers handshakes that begin a login.

Errors: ILLEGAL_SASL_STATE, always.

KIPs: 43, 152, 368.
"""

from __future__ import annotations

from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handler() -> HandlerSpec:
    """Returns the handler."""

    def handle(_request: SaslHandshakeRequest, _context: RequestContext) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])

    return HandlerSpec(key=ApiKey.SASL_HANDSHAKE, guard=FOR_EVERYONE, handle=handle)
