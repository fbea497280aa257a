"""`lowtide quotas`: shows and changes the quotas of users, client ids and addresses."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from lowtide.admin.quotas import DEFAULT_NAME, QuotaEntity
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.config_changes import ValidateOnlyOption, assignments_of
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.results import report_each

app = typer.Typer(add_completion=False, no_args_is_help=True)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="a user; its name without `User:`")]
ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="a client id, also together with a user")
]
Address = Annotated[
    str | None, typer.Option("--ip", metavar="ADDRESS", help="an address, for connection_creation_rate")
]
Default = Annotated[
    list[str] | None,
    typer.Option(
        "--default", metavar="KIND", help="all without a quota of their own: user, client-id or ip; may be repeated"
    ),
]

_KINDS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}


def entity_of(user: str | None, client_id: str | None, ip: str | None, defaults: list[str] | None) -> QuotaEntity:
    """Returns the named entity. Errors: CommandError for none, and for conflicting options."""
    names: dict[str, object] = {
        field: name for field, name in (("user", user), ("client_id", client_id), ("ip", ip)) if name is not None
    }
    for kind in defaults or []:
        if kind not in _KINDS:
            raise misused(f"--default {kind} is invalid: it must be user, client-id or ip.")
        if _KINDS[kind] in names:
            raise misused(f"--default {kind} and --{kind} exclude each other.")
        names[_KINDS[kind]] = DEFAULT_NAME
    if not names:
        raise misused("give --user, --client-id, --ip or --default.")
    return QuotaEntity(**names)  # type: ignore[arg-type]


def limits_of(settings: list[str]) -> dict[str, float]:
    """Reads quotas. Errors: CommandError for an invalid number."""
    limits = {}
    for key, text in assignments_of(settings).items():
        try:
            limits[key] = float(text)
        except ValueError:
            raise misused(f"{key}={text} is not a number.") from None
    return limits


def shown(limit: float) -> str:
    """Formats a limit; whole numbers have no fraction."""
    return str(int(limit)) if limit == int(limit) else str(limit)


@app.command("list")
@network
async def list_quotas(call: NetworkCall) -> ExitCode:
    """List all quotas."""
    quotas = await call.client.describe_quotas()
    document = {"quotas": [{"entity": dict(entity.pairs), "limits": limits} for entity, limits in quotas.items()]}
    rows = [(str(entity), key, shown(limit)) for entity, limits in quotas.items() for key, limit in limits.items()]
    call.show(document, ("set on", "quota", "limit"), sorted(rows))
    return ExitCode.DONE


@app.command("set")
@network
async def set_quotas(
    call: NetworkCall,
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=LIMIT…", help="as producer_byte_rate=1048576; docs/quotas.md has all")
    ],
    *,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Default = None,
    validate_only: ValidateOnlyOption = False,
) -> ExitCode:
    """Set quotas; others of the same user, client id or address stay as they are."""
    changes = {entity_of(user, client_id, ip, default): limits_of(settings)}
    outcomes = await call.client.alter_quotas(changes, validate_only=validate_only)
    return report_each(outcomes, call.output, done="could be set" if validate_only else "set")


@app.command("remove")
@network
async def remove_quotas(
    call: NetworkCall,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY…", help="default: all that are set")] = None,
    *,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    default: Default = None,
) -> ExitCode:
    """Remove quotas."""
    entity = entity_of(user, client_id, ip, default)
    if not keys:
        keys = [*(await call.client.describe_quotas()).get(entity, ())]
    outcomes = await call.client.alter_quotas({entity: dict.fromkeys(keys)})
    return report_each(outcomes, call.output, done="removed")
