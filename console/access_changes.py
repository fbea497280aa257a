"""Changes of access: adds or removes one ACL, sets or removes one quota. Each is rehearsed first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.acls import Acl, AclFilter
from lowtide.admin.errors import AdminError
from lowtide.admin.quotas import DEFAULT_NAME, QuotaEntity
from lowtide.console import arguments
from lowtide.console.access import TYPES, acl_value, rights
from lowtide.console.answers import bad
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.quotas import Default
    from lowtide.console.arguments import Parameters

OPERATIONS: Final = tuple(each.name for each in AclOperation if each is not AclOperation.ANY)
NAME_CHARACTERS_MAX: Final = 249
KEY_CHARACTERS_MAX: Final = 64
LIMIT_MAX: Final = 1e15
WHOSE: Final = ("user", "client_id", "ip")
"""The parts of an entity with quotas, as `QuotaEntity` has them."""

_NONE: Final[dict[str, list[str]]] = {"may": [], "may_not": []}


@dataclass(frozen=True, slots=True)
class RehearsedRule:
    """An ACL to add or to remove, as it was shown."""

    acl: Acl
    adds: bool
    before: Sequence[Acl]
    """The ACLs that apply to a resource of this name."""


@dataclass(frozen=True, slots=True)
class RehearsedQuota:
    """A quota to set, or with a `new` of None to remove, as it was shown."""

    entity: QuotaEntity
    key: str
    old: float | None
    new: float | None


# ---------------------------------------------------------------------- ACLs
async def rehearse_rule(client: AdminClient, given: Parameters) -> RehearsedRule:
    """Plans to add or to remove an ACL. Errors: RefusedError, AdminError."""
    acl, adds = acl_of(given), arguments.choice(given, "act", ("add", "remove")) == "add"
    before = await client.describe_acls(AclFilter(acl.resource_type, acl.resource_name, AclPattern.MATCH))
    exists = acl in await client.describe_acls(AclFilter.exactly(acl))
    if adds and exists:
        raise bad("This ACL exists already.")
    if not adds and not exists:
        raise bad("There is no such ACL.")
    return RehearsedRule(acl, adds, before)


def acl_of(given: Parameters) -> Acl:
    """Reads an ACL. Errors: RefusedError."""
    principal = arguments.text(given, "principal", longest=NAME_CHARACTERS_MAX)
    if not all(principal.partition(":")):
        raise bad("principal must be a type and a name, such as User:alice.")
    prefixed = arguments.flag(given, "prefixed")
    return Acl(
        AclResourceType[arguments.choice(given, "type", TYPES).upper()],
        arguments.text(given, "name", longest=NAME_CHARACTERS_MAX),
        AclPattern.PREFIXED if prefixed else AclPattern.LITERAL,
        principal,
        arguments.optional_text(given, "host", longest=NAME_CHARACTERS_MAX) or "*",
        AclOperation[arguments.choice(given, "operation", OPERATIONS)],
        AclPermission.ALLOW if arguments.flag(given, "allows") else AclPermission.DENY,
    )


def rule_value(plan: RehearsedRule) -> dict[str, Any]:
    """Returns the change for the page, with what its principal may do before and afterwards."""
    after = [each for each in plan.before if each != plan.acl] + ([plan.acl] if plan.adds else [])
    return {
        "adds": plan.adds,
        "acl": acl_value(plan.acl),
        "before": _rights_of(plan.acl, plan.before),
        "after": _rights_of(plan.acl, after),
        "notes": _notes(plan, after),
    }


def _rights_of(acl: Acl, acls: Sequence[Acl]) -> dict[str, Any]:
    rows = rights(acl.resource_type, acls)
    found = [row for row in rows if (row["principal"], row["host"]) == (acl.principal, acl.host)]
    return {key: found[0][key] for key in _NONE} if found else dict(_NONE)


def _notes(plan: RehearsedRule, after: Sequence[Acl]) -> list[str]:
    found = []
    if plan.acl.principal.endswith(":*") and plan.acl.permission is AclPermission.ALLOW and plan.adds:
        found.append("The ACL allows this to everybody who can connect.")
    if plan.acl.pattern is AclPattern.PREFIXED:
        found.append("The ACL applies to all resources whose names begin so, also to those that are created later.")
    if not after and not plan.adds:
        found.append(
            "No other ACL applies to a resource of this name. "
            "If allow.everyone.if.no.acl.found is true, everybody may use it then."
        )
    return found


async def carry_out_rule(client: AdminClient, plan: RehearsedRule) -> dict[str, Any]:
    """Adds or removes the ACL. Errors: RefusedError, AdminError."""
    if plan.adds:
        error = (await client.create_acls([plan.acl]))[plan.acl]
        if error is not None:
            raise error
    else:
        wanted = AclFilter.exactly(plan.acl)
        deleted = (await client.delete_acls([wanted]))[wanted]
        if isinstance(deleted, AdminError):
            raise deleted
        if not deleted:
            raise bad("The ACL was removed by somebody else meanwhile.")
    return {"adds": plan.adds, "acl": acl_value(plan.acl)}


# ---------------------------------------------------------------------- quotas
async def rehearse_quota(client: AdminClient, given: Parameters) -> RehearsedQuota:
    """Plans to set or to remove a quota; the broker checks it. Errors: RefusedError, AdminError."""
    entity = QuotaEntity(**{part: _named(given, part) for part in WHOSE})
    if not entity.pairs:
        raise bad("A user, a client id or an address must be given.")
    key = arguments.text(given, "key", longest=KEY_CHARACTERS_MAX)
    new, old = _limit(given), (await client.describe_quotas()).get(entity, {}).get(key)
    if new == old:
        raise bad("There is no such quota." if new is None else "The quota has this limit already.")
    error = (await client.alter_quotas({entity: {key: new}}, validate_only=True))[entity]
    if error is not None:
        raise error
    return RehearsedQuota(entity, key, old, new)


def _named(given: Parameters, part: str) -> str | Default | None:
    """Reads a part of an entity: a name, or an object that stands for the default."""
    if given.get(part) == {"default": True}:
        return DEFAULT_NAME
    return arguments.optional_text(given, part, longest=NAME_CHARACTERS_MAX)


def _limit(given: Parameters) -> float | None:
    """Reads a limit; None or an empty text removes it."""
    value = given.get("limit")
    if value in (None, ""):
        return None
    try:
        limit = float(arguments.text(given, "limit", longest=32))
    except ValueError:
        limit = math.nan
    if not 0 < limit <= LIMIT_MAX:
        raise bad("limit must be a number above 0, such as 1048576, or empty to remove the quota.")
    return limit


def quota_value(plan: RehearsedQuota) -> dict[str, Any]:
    """Returns the change for the page."""
    return {"entity": str(plan.entity), "key": plan.key, "old": plan.old, "new": plan.new, "notes": []}


async def carry_out_quota(client: AdminClient, plan: RehearsedQuota) -> dict[str, Any]:
    """Sets or removes the quota, if it is still as it was shown. Errors: RefusedError, AdminError."""
    now = (await client.describe_quotas()).get(plan.entity, {}).get(plan.key)
    if now != plan.old:
        raise bad("Somebody else has changed this quota meanwhile: rehearse again.")
    error = (await client.alter_quotas({plan.entity: {plan.key: plan.new}}))[plan.entity]
    if error is not None:
        raise error
    return quota_value(plan)
