"""`lowtide tokens`: delegation tokens, with which programs log in for a limited time (KIP-48).

Only the command that creates a token prints its password. The others identify tokens by their ids, which are not
secret.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import typer

from lowtide.admin.delegation_tokens import DelegationToken
from lowtide.cli.acls import principal_of
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, print_json, printable

app = typer.Typer(add_completion=False, no_args_is_help=True)

TokenId = Annotated[str, typer.Argument(metavar="TOKEN", help="its id, from `lowtide tokens list`")]

_UNITS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AS_LONG_AS_ALLOWED: Final = -1
_AT_ONCE: Final = -1


def duration_ms_of(text: str) -> int:
    """Reads `90s`, `30m`, `12h` or `7d` in milliseconds. Errors: CommandError."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    if match is None:
        raise misused(f"{text!r} is not a duration: write a whole number and s, m, h or d, such as 12h.")
    return int(match[1]) * _UNITS[match[2]]


@app.command()
@network
async def create(
    call: NetworkCall,
    *,
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="USER", help="the user as whom clients log in; default: you"),
    ] = None,
    renewer: Annotated[
        list[str] | None,
        typer.Option(
            "--renewer", metavar="USER", help="a user who may renew and expire it besides its owner; may be repeated"
        ),
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            "--lifetime", metavar="DURATION", help="its longest lifetime, renewals included: 90s, 30m, 12h, 7d"
        ),
    ] = None,
) -> ExitCode:
    """Create a token, and print its id and its password. The password is not shown again."""
    token = await call.client.create_delegation_token(
        owner=None if owner is None else principal_of(owner),
        renewers=[principal_of(each) for each in renewer or ()],
        lifetime_ms=_AS_LONG_AS_ALLOWED if lifetime is None else duration_ms_of(lifetime),
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
        list[str] | None, typer.Option("--user", metavar="USER", help="only tokens of this user; may be repeated")
    ] = None,
) -> ExitCode:
    """List the tokens that you may see, without their passwords."""
    owners = None if user is None else [principal_of(each) for each in user]
    tokens = await call.client.describe_delegation_tokens(owners)
    columns = ("token", "owner", "requester", "renewers", "expires", "renewable until")
    rows = [
        (
            each.token_id,
            each.owner,
            each.requester,
            ", ".join(each.renewers),
            moment(each.expires_ms),
            moment(each.ends_ms),
        )
        for each in tokens
    ]
    call.show({"tokens": [_value(each) for each in tokens]}, columns, rows)
    return ExitCode.DONE


@app.command()
@network
async def renew(
    call: NetworkCall,
    token: TokenId,
    *,
    period: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="how long it lasts from now on; default: as long as allowed"),
    ] = None,
) -> ExitCode:
    """Extend a token, within its lifetime."""
    period_ms = _AS_LONG_AS_ALLOWED if period is None else duration_ms_of(period)
    found = await _found(call, token)
    ends = await call.client.renew_delegation_token(found.hmac, period_ms=period_ms)
    return _done(call, token, ends, "expires")


@app.command()
@network
async def expire(
    call: NetworkCall,
    token: TokenId,
    *,
    period: Annotated[
        str | None, typer.Option("--in", metavar="DURATION", help="when it expires; default: at once")
    ] = None,
) -> ExitCode:
    """Expire a token. Connections that have logged in with it stay until its former end."""
    period_ms = _AT_ONCE if period is None else duration_ms_of(period)
    found = await _found(call, token)
    ends = await call.client.expire_delegation_token(found.hmac, period_ms=period_ms)
    return _done(call, token, ends, "removed" if period is None else "expires")


async def _found(call: NetworkCall, token_id: str) -> DelegationToken:
    """Finds a token with its HMAC by its id. Errors: CommandError, AdminError."""
    for token in await call.client.describe_delegation_tokens():
        if token.token_id == token_id:
            return token
    raise CommandError(f"there is no token {token_id} that you may see.")


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
