"""RenewDelegationToken: v1-v2.

Behaviour: sets a new expiry time of a token, later or earlier: at most `delegation.token.expiry.time.ms` from now, and
at most the end of its lifetime. The response is sent when all brokers act on the change.

Version notes: v2 is flexible.

Errors: in this order DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on PLAINTEXT, without a client certificate, and after a login
with a token; DELEGATION_TOKEN_AUTH_DISABLED without `delegation.token.secret.key`; DELEGATION_TOKEN_NOT_FOUND;
DELEGATION_TOKEN_EXPIRED; DELEGATION_TOKEN_OWNER_MISMATCH for a client that is neither its owner nor a renewer;
REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE, NOT_CONTROLLER if this broker lost its registration.

KIPs: 48.
"""

from __future__ import annotations

from lowtide.broker.administration.delegation_token_administrator import TokenAdministrator
from lowtide.broker.guards.audited_requests import CHANGED_TOKEN
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest, RenewDelegationTokenResponse
from lowtide.replication.refusal import Refusal


def handler(administrator: TokenAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: RenewDelegationTokenRequest, context: RequestContext) -> RenewDelegationTokenResponse:
        if not context.connection.shown_by.may_ask_for_tokens:
            return RenewDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        outcome = await administrator.renew(context.principal, bytes(request.hmac), request.renew_period_ms)
        if isinstance(outcome, Refusal):
            return RenewDelegationTokenResponse(error_code=outcome.error_code)
        administrator.broker.log.info("delegation token renewed", principal=str(context.principal), expires_ms=outcome)
        return RenewDelegationTokenResponse(error_code=ErrorCode.NONE, expiry_timestamp_ms=outcome)

    return HandlerSpec(key=ApiKey.RENEW_DELEGATION_TOKEN, guard=CHECKS_ITSELF, handle_later=handle, audit=CHANGED_TOKEN)
