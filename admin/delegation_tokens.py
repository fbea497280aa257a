"""Delegation tokens (KIP-48, KIP-373): created, renewed, ended and described.

With the id of a token as user name and its HMAC as password a client logs in by SCRAM as the token's owner, until the
token ends.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.anywhere import outcome_of_error, to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.cluster import raise_for_error
from lowtide.admin.errors import AdminError
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_delegation_token import CreatableRenewer, CreateDelegationTokenRequest
from lowtide.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from lowtide.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId

_REMEDIES: Final = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key, the same on all brokers",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in with a password or a certificate, over TLS or SASL",
}
"""What helps, for responses that have no room for a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token. Principals are texts as `User:alice`; times are milliseconds since 1970. `repr` doesn't show the HMAC.

    It ends at `expires_ms`, which a renewal sets, and at `ends_ms` at the latest.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    """Empty where the broker doesn't say."""
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int

    @property
    def password(self) -> str:
        """What a client gives as its password, with the id as its name and `tokenauth`."""
        return base64.b64encode(self.hmac).decode()


async def create_delegation_token(
    cluster: Cluster, owner: str | None, renewers: Iterable[str], lifetime_ms: int, deadline: Deadline
) -> DelegationToken:
    """See `AdminClient.create_delegation_token`."""
    named, may_renew = (None, None) if owner is None else _principal(owner), tuple(renewers)
    request = CreateDelegationTokenRequest(
        owner_principal_type=named[0],
        owner_principal_name=named[1],
        renewers=[
            CreatableRenewer(principal_type=kind, principal_name=name) for kind, name in map(_principal, may_renew)
        ],
        max_lifetime_ms=lifetime_ms,
    )
    answer = await _change(cluster, request, "the token", deadline)
    return DelegationToken(
        token_id=answer.token_id,
        hmac=bytes(answer.hmac),
        owner=_text(answer.principal_type, answer.principal_name),
        requester=_text(answer.token_requester_principal_type, answer.token_requester_principal_name),
        renewers=may_renew,
        issued_ms=answer.issue_timestamp_ms,
        expires_ms=answer.expiry_timestamp_ms,
        ends_ms=answer.max_timestamp_ms,
    )


async def renew_delegation_token(cluster: Cluster, hmac: bytes, period_ms: int, deadline: Deadline) -> int:
    """See `AdminClient.renew_delegation_token`."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    return int((await _change(cluster, request, "the token", deadline)).expiry_timestamp_ms)


async def expire_delegation_token(cluster: Cluster, hmac: bytes, period_ms: int, deadline: Deadline) -> int:
    """See `AdminClient.expire_delegation_token`."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return int((await _change(cluster, request, "the token", deadline)).expiry_timestamp_ms)


async def describe_delegation_tokens(
    cluster: Cluster, owners: Iterable[str] | None, deadline: Deadline
) -> list[DelegationToken]:
    """See `AdminClient.describe_delegation_tokens`."""
    rows = None
    if owners is not None:
        rows = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_principal, owners)
        ]

    async def ask(handle: BrokerHandle) -> list[DelegationToken]:
        response = await handle.ask(DescribeDelegationTokenRequest(owners=rows))
        raise_for_error(handle, response, "the tokens")
        return sorted(map(_described, response.tokens), key=lambda token: (token.issued_ms, token.token_id))

    tokens: list[DelegationToken] = await cluster.ask_any(ask, deadline)
    return tokens


async def _change(cluster: Cluster, request: ApiMessage, what: str, deadline: Deadline) -> Any:
    """The answer of one broker; no second one is asked meanwhile, which would create another token.

    Errors: AdminError.
    """

    async def send(broker_id: BrokerId, asked: list[str], _: int) -> Mapping[str, Outcome[Any]]:
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(request)
        said = _REMEDIES.get(response.error_code)
        return {
            each: outcome_of_error(each, response.error_code, said) if response.error_code else Done(response)
            for each in asked
        }

    attempts = Attempts[str, Any](cluster, deadline, to_a_broker(cluster, deadline), send)
    await attempts.run([what])
    outcome = attempts.results(str)[what]
    if isinstance(outcome, AdminError):
        raise outcome
    return outcome


def _principal(text: str) -> tuple[str, str]:
    """Type and name. Errors: ValueError."""
    kind, _, name = text.partition(":")
    if not kind or not name:
        message = f"a principal is Type:name, such as User:alice, and not {text!r}"
        raise ValueError(message)
    return kind, name


def _text(kind: str, name: str) -> str:
    return f"{kind}:{name}" if kind else ""


def _described(row: Any) -> DelegationToken:
    return DelegationToken(
        token_id=row.token_id,
        hmac=bytes(row.hmac),
        owner=_text(row.principal_type, row.principal_name),
        requester=_text(row.token_requester_principal_type, row.token_requester_principal_name),
        renewers=tuple(_text(each.principal_type, each.principal_name) for each in row.renewers),
        issued_ms=row.issue_timestamp,
        expires_ms=row.expiry_timestamp,
        ends_ms=row.max_timestamp,
    )
