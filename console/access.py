"""The page of access: ACLs, and who may do what with a resource; SCRAM users; quotas; delegation tokens.

No secret is sent: neither hashes of passwords nor HMACs of tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.acls import AclFilter
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.console import arguments
from lowtide.console.answers import sentence_of
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from lowtide.admin.acls import Acl
    from lowtide.admin.client import AdminClient
    from lowtide.admin.quotas import Default
    from lowtide.console.arguments import Parameters

ROWS_MAX: Final = 5_000
"""How many ACLs, users, quotas or tokens are sent; the page says how many are left out."""

TYPES: Final = tuple(each.name.lower() for each in AclResourceType if each is not AclResourceType.ANY)

_CONFIGS: Final = ("DESCRIBE_CONFIGS", "ALTER_CONFIGS")
_OPERATIONS: Final = {
    AclResourceType.TOPIC: ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", *_CONFIGS),
    AclResourceType.GROUP: ("READ", "DELETE", "DESCRIBE", *_CONFIGS),
    AclResourceType.CLUSTER: ("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "IDEMPOTENT_WRITE", *_CONFIGS),
    AclResourceType.TRANSACTIONAL_ID: ("WRITE", "DESCRIBE", "TWO_PHASE_COMMIT"),
    AclResourceType.DELEGATION_TOKEN: ("DESCRIBE",),
    AclResourceType.USER: ("CREATE_TOKENS", "DESCRIBE_TOKENS"),
}
"""The operations that exist for each type of resource."""

_IMPLY_DESCRIBE: Final = frozenset({"READ", "WRITE", "DELETE", "ALTER"})
"""A right to any of these is a right to DESCRIBE; ALTER_CONFIGS is one to DESCRIBE_CONFIGS. Source: KIP-11."""


async def acls_view(client: AdminClient, given: Parameters) -> dict[str, Any]:
    """Returns all ACLs, or those that apply to a resource with what each principal may do. Errors: RefusedError."""
    name = arguments.optional_text(given, "name")
    kind = AclResourceType[arguments.choice(given, "type", TYPES, "topic").upper()]
    wanted = AclFilter() if name is None else AclFilter(kind, name, AclPattern.MATCH)
    try:
        acls = await client.describe_acls(wanted)
    except BrokerAnsweredError as error:
        if error.code != ErrorCode.SECURITY_DISABLED:
            raise
        return {"secured": False, "acls": [], "left_out": 0, "rights": None}
    return {
        "secured": True,
        "acls": [acl_value(each) for each in acls[:ROWS_MAX]],
        "left_out": max(0, len(acls) - ROWS_MAX),
        "rights": None if name is None else rights(kind, acls),
    }


def acl_value(acl: Acl) -> dict[str, Any]:
    """Returns an ACL for the page."""
    return {
        "type": acl.resource_type.name.lower(),
        "name": acl.resource_name,
        "prefixed": acl.pattern is AclPattern.PREFIXED,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "allows": acl.permission is AclPermission.ALLOW,
    }


def rights(kind: AclResourceType, acls: Iterable[Acl]) -> list[dict[str, Any]]:
    """Returns what principals may do with a resource, from the ACLs that apply to it. A denial is the stronger one.

    Denials for everybody, or for all hosts, count for each principal and host.
    """
    allowed: dict[tuple[str, str], set[str]] = defaultdict(set)
    denied: dict[tuple[str, str], set[str]] = defaultdict(set)
    for acl in acls:
        into, grants = (allowed, True) if acl.permission is AclPermission.ALLOW else (denied, False)
        into[acl.principal, acl.host].update(_meant(kind, acl.operation, grants=grants))
    rows = []
    for principal, host in sorted({*allowed, *denied}):
        refused = {
            each
            for (other, place), some in denied.items()
            if other in (principal, _everybody(principal)) and place in (host, "*")
            for each in some
        }
        rows.append(
            {
                "principal": principal,
                "host": host,
                "may": _ordered(kind, allowed[principal, host] - refused),
                "may_not": _ordered(kind, refused),
            }
        )
    return rows


def _everybody(principal: str) -> str:
    return f"{principal.partition(':')[0]}:*"


def _meant(kind: AclResourceType, operation: AclOperation, *, grants: bool) -> set[str]:
    """Returns the operations that an ACL names; one that allows also names those that are implied."""
    if operation is AclOperation.ALL:
        return set(_OPERATIONS[kind])
    found = {operation.name}
    if grants and operation.name in _IMPLY_DESCRIBE:
        found.add("DESCRIBE")
    if grants and operation is AclOperation.ALTER_CONFIGS:
        found.add("DESCRIBE_CONFIGS")
    return found & set(_OPERATIONS[kind])


def _ordered(kind: AclResourceType, names: set[str]) -> list[str]:
    return [name for name in _OPERATIONS[kind] if name in names]


# ---------------------------------------------------------------------- users, quotas, tokens
async def users_view(client: AdminClient) -> dict[str, Any]:
    """Returns the users with SCRAM credentials, and the mechanisms of each."""
    users = await client.describe_scram_users()
    rows: list[dict[str, Any]] = []
    for name, found in sorted(users.items())[:ROWS_MAX]:
        if isinstance(found, AdminError):
            rows.append({"user": name, "mechanisms": [], "error": sentence_of(found)})
        else:
            mechanisms = [
                {"name": "SCRAM-" + mechanism.name.replace("_", "-"), "iterations": count}
                for mechanism, count in found.items()
            ]
            rows.append({"user": name, "mechanisms": mechanisms, "error": None})
    return {"users": rows, "left_out": max(0, len(users) - ROWS_MAX)}


async def quotas_view(client: AdminClient) -> dict[str, Any]:
    """Returns all quotas. The name of a default is null, and `default` says whose it is."""
    quotas = await client.describe_quotas()
    rows = [
        {
            "user": _part(entity.user),
            "client": _part(entity.client_id),
            "address": _part(entity.ip),
            "limits": [{"key": key, "value": value} for key, value in sorted(limits.items())],
        }
        for entity, limits in sorted(quotas.items(), key=lambda each: str(each[0]))
    ]
    return {"quotas": rows[:ROWS_MAX], "left_out": max(0, len(rows) - ROWS_MAX)}


def _part(name: str | Default | None) -> dict[str, Any] | None:
    if name is None:
        return None
    return {"name": name, "default": False} if isinstance(name, str) else {"name": None, "default": True}


async def tokens_view(client: AdminClient) -> dict[str, Any]:
    """Returns the delegation tokens that the user may see, without their HMACs."""
    try:
        tokens = await client.describe_delegation_tokens()
    except BrokerAnsweredError as error:
        return {"tokens": [], "left_out": 0, "trouble": sentence_of(error)}
    rows = [
        {
            "id": token.token_id,
            "owner": token.owner,
            "requester": token.requester,
            "renewers": list(token.renewers),
            "issued_ms": token.issued_ms,
            "expires_ms": token.expires_ms,
            "ends_ms": token.ends_ms,
        }
        for token in tokens[:ROWS_MAX]
    ]
    return {"tokens": rows, "left_out": max(0, len(tokens) - ROWS_MAX), "trouble": None}
