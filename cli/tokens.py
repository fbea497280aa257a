"""`lowtide tokens`: delegation tokens, by which programs log in for a time without a password of their own (KIP-48).

A token's password is printed once, by the command that creates it. The others name tokens by their ids, which are no
secrets.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from lowtide.admin.delegation_tokens import DelegationToken
from lowtide.cli.acls import principal_of
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, print_json, print_table, printable

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Create, list, renew and end delegation tokens (KIP-48)."
)

TokenId = Annotated[str, typer.Argument(metavar="TOKEN", help="its id, as `lowtide tokens list` has it")]

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AS_LONG_AS_ALLOWED: Final = -1
_AT_ONCE: Final = -1


def duration_ms_of(text: str) -> int:
    """`90s`, `30m`, `12h`, `7d`, in milliseconds. Errors: CommandError."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if match is None:
        raise misused(f"{text!r} is no duration: a whole number with s, m, h or d behind it, such as 12h.")
    return int(match[1]) * _UNITS[match[2]]


@app.command()
@network
async def create(
    call: NetworkCall,
    *,
    owner: Annotated[
        str | None,
        typer.Option(
            "--owner", metavar="USER", help="as whom clients log in by it; without it as the user that creates it"
        ),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option("--renewer", metavar="USER", help="may renew and end it besides its owner; may be repeated"),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            "--lifetime", metavar="DURATION", help="how long it lasts at most, renewals included: 90s, 30m, 12h, 7d"
        ),
    ] = None,
) -> ExitCode:
    """Create a token, and print its id and its password. The password is not shown again."""
    token = await call.client.create_delegation_token(
        owner=None if owner is None else principal_of(owner),
        renewers=[principal_of(each) for each in renewer or ()],
        lifetime_ms=_AS_LONG_AS_ALLOWED if lifetime is None else duration_ms_of(lifetime),
        timeout=call.timeout_ms / 1000,
    )
    if call.output is Output.JSON:
        print_json({"token": {**_value(token), "password": token.password}})
    else:
        print(
            f"token     {printable(token.token_id)}\npassword  {token.password}\nexpires   {moment(token.expires_ms)}"
        )
    return ExitCode.DONE


@app.command("list")
@network
async def list_tokens(
    call: NetworkCall,
    *,
    user: Annotated[
        list[str] | None, typer.Option("--user", metavar="USER", help="that concern this user; may be repeated")
    ] = None,
) -> ExitCode:
    """List the tokens that you may see, without their passwords."""
    owners = None if user is None else [principal_of(each) for each in user]
    tokens = await call.client.describe_delegation_tokens(owners, timeout=call.timeout_ms / 1000)
    if call.output is Output.JSON:
        print_json({"tokens": [_value(token) for token in tokens]})
    else:
        rows = [
            (
                token.token_id,
                token.owner,
                token.requester,
                ", ".join(token.renewers),
                moment(token.expires_ms),
                moment(token.ends_ms),
            )
            for token in tokens
        ]
        print_table(("token", "owner", "requester", "renewers", "expires", "renewable until"), rows)
    return ExitCode.DONE


@app.command()
@network
async def renew(
    call: NetworkCall,
    token: TokenId,
    *,
    period: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="DURATION", help="how long it shall last from now on; as long as allowed without it"
        ),
    ] = None,
) -> ExitCode:
    """Have a token last longer, but never beyond its lifetime."""
    period_ms = _AS_LONG_AS_ALLOWED if period is None else duration_ms_of(period)
    found = await _found(call, token)
    ends = await call.client.renew_delegation_token(found.hmac, period_ms=period_ms, timeout=call.timeout_ms / 1000)
    return _done(call, token, ends, "expires")


@app.command()
@network
async def expire(
    call: NetworkCall,
    token: TokenId,
    *,
    period: Annotated[
        str | None, typer.Option("--in", metavar="DURATION", help="in how long it shall end; at once without it")
    ] = None,
) -> ExitCode:
    """End a token. Connections that logged in by it stay until it would have ended."""
    period_ms = _AT_ONCE if period is None else duration_ms_of(period)
    found = await _found(call, token)
    ends = await call.client.expire_delegation_token(found.hmac, period_ms=period_ms, timeout=call.timeout_ms / 1000)
    return _done(call, token, ends, "removed" if period is None else "expires")


async def _found(call: NetworkCall, token_id: str) -> DelegationToken:
    """A token by its id, with its HMAC, which brokers want. Errors: CommandError, AdminError."""
    for token in await call.client.describe_delegation_tokens(timeout=call.timeout_ms / 1000):
        if token.token_id == token_id:
            return token
    raise CommandError(f"There is no token {token_id} that you may see.")


def _done(call: NetworkCall, token_id: str, expires_ms: int, what: str) -> ExitCode:
    if call.output is Output.JSON:
        print_json({"token": token_id, "outcome": what, "expires_ms": expires_ms})
    else:
        print(f"{printable(token_id)}: {what}{'' if what == 'removed' else f' {moment(expires_ms)}'}")
    return ExitCode.DONE


def _value(token: DelegationToken) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "ends_ms": token.ends_ms,
    }
