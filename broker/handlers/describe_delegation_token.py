"""DescribeDelegationToken: v1-v3.

Behaviour: returns the tokens that a client may see, with their HMACs: those that it owns, requested or may renew, and
those on which it has DESCRIBE, or DESCRIBE_TOKENS on their owner. A null list of owners requests all of them, an empty
list none.

Version notes: v2 is flexible, v3 has the requester.

Errors: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on PLAINTEXT, without a client certificate, and after a login with a token;
DELEGATION_TOKEN_AUTH_DISABLED without `delegation.token.secret.key`.

KIPs: 48, 373.
"""

from __future__ import annotations

from lowtide.broker.administration.delegation_token_administrator import IssuedToken, TokenAdministrator
from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import KafkaPrincipal, parse_principal
from lowtide.metadata.records import TokenRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from lowtide.replication.refusal import Refusal


def handler(administrator: TokenAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(
        request: DescribeDelegationTokenRequest, context: RequestContext
    ) -> DescribeDelegationTokenResponse:
        if not context.connection.shown_by.may_ask_for_tokens:
            return DescribeDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, tokens=[])
        authorize = administrator.broker.authorizer.authorize

        def may_see(token: TokenRecord) -> bool:
            return authorize(
                context, Operation.DESCRIBE, Resource(ResourceType.DELEGATION_TOKEN, token.token_id), Audit.ALLOWED
            ) or authorize(context, Operation.DESCRIBE_TOKENS, Resource(ResourceType.USER, token.owner), Audit.ALLOWED)

        owners = None
        if request.owners is not None:
            owners = [str(KafkaPrincipal(each.principal_type, each.principal_name)) for each in request.owners]
        found = await administrator.find(context.principal, owners, may_see)
        if isinstance(found, Refusal):
            return DescribeDelegationTokenResponse(error_code=found.error_code, tokens=[])
        return DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=[_row(each) for each in found])

    return HandlerSpec(key=ApiKey.DESCRIBE_DELEGATION_TOKEN, guard=CHECKS_ITSELF, handle_later=handle)


def _row(issued: IssuedToken) -> DescribedDelegationToken:
    token = issued.token
    owner, requester = parse_principal(token.owner), parse_principal(token.requester)
    renewers = [parse_principal(each) for each in token.renewers]
    return DescribedDelegationToken(
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.ends_ms,
        token_id=token.token_id,
        hmac=issued.hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=each.type, principal_name=each.name) for each in renewers
        ],
    )
