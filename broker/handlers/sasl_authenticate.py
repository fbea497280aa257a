"""SaslAuthenticate: v0-v2.

Behaviour: refuses tokens on a listener without SASL, or after the login. `network/sasl_connection` answers tokens that
belong to a login.

Errors: ILLEGAL_SASL_STATE, always.

KIPs: 152, 368.
"""

from __future__ import annotations

from lowtide.broker.guards.guard import FOR_EVERYONE
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

_TEXT = "SaslAuthenticate request received after successful authentication"


def handler() -> HandlerSpec:
    """Returns the handler."""

    def handle(_request: SaslAuthenticateRequest, _context: RequestContext) -> SaslAuthenticateResponse:
        return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_TEXT, auth_bytes=b"")

    return HandlerSpec(key=ApiKey.SASL_AUTHENTICATE, guard=FOR_EVERYONE, handle=handle)
