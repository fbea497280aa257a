"""CreateDelegationToken: v1-v3.

Behaviour: creates a token with which a client can log in as the token's owner: the requesting client, or another
principal. The response is sent when all brokers accept the token. The client must have authenticated, and not with a
token.

Version notes: v2 is flexible, v3 has the owner and the requester.

Errors: in this order DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on PLAINTEXT, without a client certificate, and after a login
with a token; DELEGATION_TOKEN_AUTHORIZATION_FAILED for another owner without CREATE_TOKENS on it;
INVALID_PRINCIPAL_TYPE if the owner or a renewer is no `User`; DELEGATION_TOKEN_AUTH_DISABLED without
`delegation.token.secret.key`; INVALID_REQUEST for too many renewers or too long names, POLICY_VIOLATION for too many
tokens; REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE, NOT_CONTROLLER if this broker lost its registration.

KIPs: 48, 373.
"""

from __future__ import annotations

from lowtide.broker.administration.delegation_token_administrator import IssuedToken, TokenAdministrator
from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType
from lowtide.broker.guards.audited_requests import CREATED_TOKEN
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import USER_TYPE, KafkaPrincipal
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from lowtide.replication.refusal import Refusal


def handler(administrator: TokenAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: CreateDelegationTokenRequest, context: RequestContext) -> CreateDelegationTokenResponse:
        broker, requester = administrator.broker, context.principal
        owner = _owner(request, requester)
        renewers = [KafkaPrincipal(each.principal_type, each.principal_name) for each in request.renewers]
        refused = _refused(administrator, context, owner)
        if refused is None and any(each.type != USER_TYPE for each in (owner, *renewers)):
            refused = ErrorCode.INVALID_PRINCIPAL_TYPE
        if refused is not None:
            return _answer(refused, owner, requester)
        outcome = await administrator.create(requester, owner, renewers, request.max_lifetime_ms)
        if isinstance(outcome, Refusal):
            return _answer(outcome.error_code, owner, requester)
        broker.log.info(
            "delegation token created", token_id=outcome.token.token_id, owner=str(owner), requester=str(requester)
        )
        return _answer(ErrorCode.NONE, owner, requester, outcome)

    return HandlerSpec(
        key=ApiKey.CREATE_DELEGATION_TOKEN, guard=CHECKS_ITSELF, handle_later=handle, audit=CREATED_TOKEN
    )


def _owner(request: CreateDelegationTokenRequest, requester: KafkaPrincipal) -> KafkaPrincipal:
    """Returns the owner of the token: the client, unless it names another."""
    if not request.owner_principal_name:
        return requester
    return KafkaPrincipal(request.owner_principal_type or "", request.owner_principal_name)


def _refused(administrator: TokenAdministrator, context: RequestContext, owner: KafkaPrincipal) -> ErrorCode | None:
    """Returns why the client may not have a token for this owner; None if it may."""
    if not context.connection.shown_by.may_ask_for_tokens:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    authorize = administrator.broker.authorizer.authorize
    if owner != context.principal and not authorize(
        context, Operation.CREATE_TOKENS, Resource(ResourceType.USER, str(owner))
    ):
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    return None


def _answer(
    error_code: ErrorCode, owner: KafkaPrincipal, requester: KafkaPrincipal, issued: IssuedToken | None = None
) -> CreateDelegationTokenResponse:
    answer = CreateDelegationTokenResponse(
        error_code=error_code,
        principal_type=owner.type,
        principal_name=owner.name,
        token_requester_principal_type=requester.type,
        token_requester_principal_name=requester.name,
    )
    if issued is not None:
        token = issued.token
        answer.issue_timestamp_ms, answer.expiry_timestamp_ms, answer.max_timestamp_ms = (
            token.issued_ms,
            token.expires_ms,
            token.ends_ms,
        )
        answer.token_id, answer.hmac = token.token_id, issued.hmac
    return answer
