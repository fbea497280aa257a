"""`lowtide acls`: lists, creates and removes ACLs, and explains which one decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import typer

from lowtide.admin.acls import Acl, AclFilter
from lowtide.admin.configs import ConfigResource
from lowtide.admin.errors import AdminError
from lowtide.broker.authorizer.acl_index import AclIndex, decide
from lowtide.broker.authorizer.resources import CLUSTER_NAME, Resource
from lowtide.broker.authorizer.standard_authorizer import parse_super_users
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.confirmation import confirm
from lowtide.cli.outcome import ExitCode, misused
from lowtide.cli.printing import Output, plural, print_json, printable
from lowtide.cli.results import errors_of, report_each
from lowtide.metadata.records import AclRecord
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.runtime.addresses import in_normal_form

app = typer.Typer(add_completion=False, no_args_is_help=True)

User = Annotated[str, typer.Argument(metavar="USER", help="alice, User:alice, or * for all")]
Operations = Annotated[str, typer.Argument(metavar="OPERATION,…", help="read, write, describe, … or all")]
ResourceWords = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE", help="topic:flights, topic:flights-* (a prefix), topic:*, group:etl, cluster, …"
    ),
]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="from this address or range (10.0.0.0/8) only")]

_KINDS: Final = {
    "topic": AclResourceType.TOPIC,
    "group": AclResourceType.GROUP,
    "cluster": AclResourceType.CLUSTER,
    "transactional-id": AclResourceType.TRANSACTIONAL_ID,
    "token": AclResourceType.DELEGATION_TOKEN,
    "user": AclResourceType.USER,
}
_WILDCARD: Final = "*"


def principal_of(user: str) -> str:
    """Returns the principal of a user: `User:alice` for `alice`. Errors: CommandError."""
    principal = user if ":" in user else f"User:{user}"
    if not all(principal.partition(":")[::2]):
        raise misused(f"{user!r} is not a user: write alice or User:alice.")
    return principal


def operations_of(words: str) -> list[AclOperation]:
    """Reads names of operations, separated by commas. Errors: CommandError."""
    found = []
    for word in words.split(","):
        name = word.strip().upper().replace("-", "_")
        if name not in AclOperation.__members__ or name == AclOperation.ANY.name:
            names = ", ".join(
                each.name.lower().replace("_", "-") for each in AclOperation if each is not AclOperation.ANY
            )
            raise misused(f"{word.strip()!r} is not an operation: it must be one of {names}.")
        found.append(AclOperation[name])
    return found


def resource_of(words: str) -> tuple[AclResourceType, str, AclPattern]:
    """Reads `topic:flights`, `topic:flights-*` (a prefix) or `topic:*` (all). Errors: CommandError."""
    kind, _, name = words.partition(":")
    if kind == "cluster" and name in ("", CLUSTER_NAME):
        return AclResourceType.CLUSTER, CLUSTER_NAME, AclPattern.LITERAL
    if kind not in _KINDS or kind == "cluster" or not name:
        raise misused(
            f"{words!r} is not a resource: write topic:NAME, group:ID, transactional-id:ID, token:ID, user:User:NAME "
            "or cluster."
        )
    if name != _WILDCARD and name.endswith(_WILDCARD):
        return _KINDS[kind], name[:-1], AclPattern.PREFIXED
    return _KINDS[kind], name, AclPattern.LITERAL


def shown_resource(acl: Acl) -> str:
    """Returns the text that `resource_of` reads."""
    kind = next(word for word, each in _KINDS.items() if each is acl.resource_type)
    if acl.resource_type is AclResourceType.CLUSTER:
        return kind
    return f"{kind}:{acl.resource_name}{_WILDCARD if acl.pattern is AclPattern.PREFIXED else ''}"


@app.command("list")
@network
async def list_acls(
    call: NetworkCall,
    *,
    resource: Annotated[
        str | None, typer.Option("--resource", metavar="RESOURCE", help="only ACLs that apply to this resource")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="only ACLs of this user")] = None,
) -> ExitCode:
    """List the rules."""
    wanted = AclFilter(principal=None if user is None else principal_of(user))
    if resource is not None:
        kind, name, pattern = resource_of(resource)
        wanted = wanted._replace(
            resource_type=kind,
            resource_name=name,
            pattern=AclPattern.MATCH if pattern is AclPattern.LITERAL else pattern,
        )
    _show(call, await call.client.describe_acls(wanted))
    return ExitCode.DONE


@app.command()
@network
async def allow(
    call: NetworkCall, user: User, operation: Operations, resource: ResourceWords, *, host: Host = _WILDCARD
) -> ExitCode:
    """Allow a user operations on a resource."""
    return await _create(call, _acls(user, operation, resource, host, AclPermission.ALLOW))


@app.command()
@network
async def deny(
    call: NetworkCall, user: User, operation: Operations, resource: ResourceWords, *, host: Host = _WILDCARD
) -> ExitCode:
    """Deny a user operations on a resource, whatever other rules allow."""
    return await _create(call, _acls(user, operation, resource, host, AclPermission.DENY))


@app.command()
@network
async def remove(
    call: NetworkCall,
    user: User,
    resource: ResourceWords,
    *,
    operation: Annotated[
        str | None, typer.Option("--operation", metavar="OPERATION,…", help="only ACLs with these operations")
    ] = None,
    yes: Yes = False,
) -> ExitCode:
    """Remove the rules of a user about a resource that was named so."""
    kind, name, pattern = resource_of(resource)
    operations = [AclOperation.ANY] if operation is None else operations_of(operation)
    filters = [AclFilter(kind, name, pattern, principal_of(user), None, each) for each in operations]
    if not yes:
        found = [acl for each in filters for acl in await call.client.describe_acls(each)]
        if not found:
            _show(call, found)
            return ExitCode.DONE
        confirm(f"Remove {plural(len(found), 'rule')}?", (_COLUMNS, [_row(acl) for acl in found]))
    results = await call.client.delete_acls(filters)
    _show(call, [acl for each in results.values() if not isinstance(each, AdminError) for acl in each])
    errors = {each.operation.name.lower(): error for each, error in errors_of(results).items()}
    return report_each(errors, call.output, quiet=True)


@app.command()
@network
async def explain(
    call: NetworkCall, user: User, operation: Operations, resource: ResourceWords, *, host: Host = "127.0.0.1"
) -> ExitCode:
    """Say whether a user may do something, and which rule decides.

    The host is 127.0.0.1 unless --host gives another.
    """
    operations = operations_of(operation)
    kind, name, pattern = resource_of(resource)
    if pattern is AclPattern.PREFIXED or len(operations) != 1 or operations[0] is AclOperation.ALL:
        raise misused("explain takes one resource by its full name, and one operation.")
    wanted = AclFilter(resource_type=kind, resource_name=name, pattern=AclPattern.MATCH)
    acls = await call.client.describe_acls(wanted)
    super_users, open_by_default = await _authorizer_settings(call)
    principal = principal_of(user)
    index = AclIndex.of(AclRecord(*acl) for acl in acls)
    decision = decide(index, principal, in_normal_form(host), operations[0], Resource(kind, name))
    rule = None if decision.rule is None else Acl(*_typed(decision.rule))
    if principal in super_users:
        allowed, reason, rule = True, f"{principal} is in super.users, which no rule limits", None
    elif rule is not None:
        allowed, reason = decision.allowed, str(rule)
    elif decision.any_rule or not open_by_default:
        allowed, reason = False, "no rule allows it"
    else:
        allowed, reason = True, "no rule is about the resource, and allow.everyone.if.no.acl.found is true"
    if call.output is Output.JSON:
        print_json({"allowed": allowed, "reason": reason, "rule": None if rule is None else _value(rule)})
    else:
        print(printable(f"{'allowed' if allowed else 'denied'}: {reason}"))
    return ExitCode.DONE


async def _authorizer_settings(call: NetworkCall) -> tuple[frozenset[str], bool]:
    """Returns the super users, and whether everyone may use resources without ACLs, from a broker's configuration."""
    described = await call.client.describe_cluster()
    broker = ConfigResource(ConfigResourceType.BROKER, str(described.brokers[0].broker_id))
    keys = ("super.users", "allow.everyone.if.no.acl.found")
    found = (await call.client.describe_configs([broker], keys=keys))[broker]
    if isinstance(found, AdminError):
        raise found
    values = {key: entry.value or "" for key, entry in found.items()}
    return parse_super_users(values.get(keys[0], "")), values.get(keys[1]) == "true"


def _typed(record: AclRecord) -> tuple[AclResourceType, str, AclPattern, str, str, AclOperation, AclPermission]:
    return (
        AclResourceType(record.resource_type),
        record.resource_name,
        AclPattern(record.pattern_type),
        record.principal,
        record.host,
        AclOperation(record.operation),
        AclPermission(record.permission),
    )


def _acls(user: str, operation: str, resource: str, host: str, permission: AclPermission) -> list[Acl]:
    kind, name, pattern = resource_of(resource)
    return [Acl(kind, name, pattern, principal_of(user), host, each, permission) for each in operations_of(operation)]


async def _create(call: NetworkCall, acls: list[Acl]) -> ExitCode:
    return report_each(await call.client.create_acls(acls), call.output, done="created")


_COLUMNS: Final = ("permission", "principal", "operation", "resource", "host")


def _row(acl: Acl) -> tuple[str, ...]:
    return acl.permission.name.lower(), acl.principal, acl.operation.name.lower(), shown_resource(acl), acl.host


def _value(acl: Acl) -> dict[str, str]:
    return {
        **dict(zip(_COLUMNS, _row(acl), strict=True)),
        "pattern": acl.pattern.name.lower(),
        "name": acl.resource_name,
    }


def _show(call: NetworkCall, acls: Iterable[Acl]) -> None:
    listed = list(acls)
    call.show({"acls": [_value(acl) for acl in listed]}, _COLUMNS, [_row(acl) for acl in listed])
