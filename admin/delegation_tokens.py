"""Delegation tokens (KIP-48, KIP-373): creates, renews, expires and describes them.

A client logs in as the token's owner by SCRAM, with the token's id as its user name and the HMAC as its password.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminCall, AdminClientBase, failure
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_delegation_token import CreatableRenewer, CreateDelegationTokenRequest
from lowtide.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from lowtide.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from lowtide.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest

if TYPE_CHECKING:
    from lowtide.protocol.schema import ApiMessage
    from lowtide.protocol.types import BrokerId

_REMEDIES: Final = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "set delegation.token.secret.key, the same on all brokers",
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "log in with a password or a certificate, over TLS or SASL",
}
"""Remedies for errors whose responses have no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token. Principals are texts such as `User:alice`; times are milliseconds since 1970. `repr` hides the HMAC.

    It expires at `expires_ms`. Renewals move that, at most to `ends_ms`.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    """Empty if the broker does not return it."""
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int

    @property
    def password(self) -> str:
        """The password of a client that logs in with the token's id as user name and `tokenauth=true`."""
        return base64.b64encode(self.hmac).decode()


async def create_delegation_token(
    client: AdminClientBase,
    *,
    owner: str | None = None,
    renewers: Iterable[str] = (),
    lifetime_ms: int = -1,
    timeout: float | None = None,
) -> DelegationToken:
    """Creates a token with which clients log in as `owner` (`User:alice`; by default this client's user).

    `renewers` may renew and expire it besides its owner. A positive `lifetime_ms` limits its lifetime, renewals
    included; brokers have a limit too.
    """
    kind, name = (None, None) if owner is None else _principal(owner)
    may_renew = tuple(renewers)
    request = CreateDelegationTokenRequest(
        owner_principal_type=kind,
        owner_principal_name=name,
        renewers=[
            CreatableRenewer(principal_type=kind, principal_name=name) for kind, name in map(_principal, may_renew)
        ],
        max_lifetime_ms=lifetime_ms,
    )
    answer = await _change(client.call(timeout), request)
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


async def renew_delegation_token(
    client: AdminClientBase, hmac: bytes, *, period_ms: int = -1, timeout: float | None = None
) -> int:
    """Lets a token expire after `period_ms`, or after the longest allowed period (-1). Returns when it expires."""
    request = RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period_ms)
    return int((await _change(client.call(timeout), request)).expiry_timestamp_ms)


async def expire_delegation_token(
    client: AdminClientBase, hmac: bytes, *, period_ms: int = -1, timeout: float | None = None
) -> int:
    """Lets a token expire after `period_ms`, or at once (-1). Returns when it expires."""
    request = ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period_ms)
    return int((await _change(client.call(timeout), request)).expiry_timestamp_ms)


async def describe_delegation_tokens(
    client: AdminClientBase, owners: Iterable[str] | None = None, *, timeout: float | None = None
) -> list[DelegationToken]:
    """Returns the tokens that this client may see, with their HMACs: all, or those of some owners."""
    rows = None
    if owners is not None:
        rows = [
            DescribeDelegationTokenOwner(principal_type=kind, principal_name=name)
            for kind, name in map(_principal, owners)
        ]
    response = await client.call(timeout).ask_any(DescribeDelegationTokenRequest(owners=rows), "the tokens")
    return sorted(map(_described, response.tokens), key=lambda token: (token.issued_ms, token.token_id))


async def _change(call: AdminCall, request: ApiMessage) -> Any:
    """Returns the answer of one broker.

    No second broker is asked meanwhile: it would create another token. Errors: AdminError.
    """

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[Any]]:
        response = await call.ask(broker_id, request)
        if response.error_code:
            return {each: failure(each, response.error_code, _REMEDIES.get(response.error_code)) for each in asked}
        return dict.fromkeys(asked, Done(response))

    return await call.single("the token", call.to_broker(), send)


def _principal(text: str) -> tuple[str, str]:
    """Returns the type and the name of a principal. Errors: ValueError."""
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ValueError(f"{text!r} is not a principal: it must be Type:name, such as User:alice")
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
