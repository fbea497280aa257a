"""Decides by an immutable index of all rules, in Kafka's order of precedence.

Guards: a denial always wins, however large its address range. Only rules for the principal or `User:*`, from the
host, from a range that contains it, or from any host count. Sources: Kafka's `StandardAuthorizerData.findAclRule`,
`findResult`, and `Authorizer.authorizeByResourceType`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from lowtide.broker.authorizer.acls import EVERYBODY, WILDCARD, PatternType, Permission
from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType
from lowtide.metadata.records import AclRecord
from lowtide.runtime.addresses import is_covered

Pattern = tuple[int, int, str]
"""The resource type, pattern type and name."""

_IMPLIED_BY: Final[Mapping[int, frozenset[int]]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""The operations whose permission implies another one. A denial implies nothing."""

_NO_ACLS: Final[tuple[AclRecord, ...]] = ()


class AclDecision(msgspec.Struct, frozen=True):
    """Whether something is allowed.

    `rule` is the deciding rule, or None. `any_rule`: whether any rules match the resource.
    """

    allowed: bool
    rule: AclRecord | None = None
    any_rule: bool = False


def _pattern(acl: AclRecord) -> Pattern:
    return acl.resource_type, acl.pattern_type, acl.resource_name


class AclIndex:
    """Finds rules by the pattern of their resources. A change makes a new index, which shares unchanged parts."""

    __slots__ = ("_by_pattern", "_lengths", "count")

    def __init__(self, by_pattern: dict[Pattern, tuple[AclRecord, ...]]) -> None:
        """Takes ownership of `by_pattern`."""
        self._by_pattern = by_pattern
        lengths: dict[int, set[int]] = {}
        for kind, pattern_type, name in by_pattern:
            if pattern_type == PatternType.PREFIXED:
                lengths.setdefault(kind, set()).add(len(name))
        self._lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}
        self.count = sum(map(len, by_pattern.values()))

    @classmethod
    def of(cls, acls: Iterable[AclRecord]) -> AclIndex:
        return cls({}).changed(acls, ())

    def changed(self, added: Iterable[AclRecord], removed: Iterable[AclRecord]) -> AclIndex:
        """Returns an index with some rules added and others removed."""
        by_pattern = dict(self._by_pattern)
        for acl in removed:
            left = tuple(each for each in by_pattern.get(_pattern(acl), _NO_ACLS) if each != acl)
            if left:
                by_pattern[_pattern(acl)] = left
            else:
                by_pattern.pop(_pattern(acl), None)
        new: dict[Pattern, list[AclRecord]] = {}
        for acl in added:
            new.setdefault(_pattern(acl), []).append(acl)
        for pattern, acls in new.items():
            by_pattern[pattern] = tuple(dict.fromkeys([*by_pattern.get(pattern, _NO_ACLS), *acls]))
        return AclIndex(by_pattern)

    def of_resource(self, resource: Resource) -> Iterator[AclRecord]:
        """Yields all rules about a resource: for its name, its prefixes, and all resources of its type."""
        find, kind, name = self._by_pattern.get, int(resource.type), resource.name
        yield from find((kind, PatternType.LITERAL, name), _NO_ACLS)
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            yield from find((kind, PatternType.PREFIXED, name[:length]), _NO_ACLS)
        if name != WILDCARD:
            yield from find((kind, PatternType.LITERAL, WILDCARD), _NO_ACLS)

    def of_type(self, kind: ResourceType) -> Iterator[AclRecord]:
        """Yields all rules about resources of a type."""
        for (found, _, _), acls in self._by_pattern.items():
            if found == kind:
                yield from acls


EMPTY: Final = AclIndex({})


def _is_of(acl: AclRecord, principal: str, host: str) -> bool:
    """Returns whether a rule is about a principal at a normalized address.

    Its host must be any, this address in some spelling, or a range that contains it.
    """
    return acl.principal in (principal, EVERYBODY) and (acl.host in (host, WILDCARD) or is_covered(host, acl.host))


def _covers(acl: AclRecord, operation: Operation) -> bool:
    """Returns whether a rule allows or denies an operation."""
    if acl.operation in (operation, Operation.ALL):
        return True
    return acl.permission == Permission.ALLOW and acl.operation in _IMPLIED_BY.get(operation, ())


def decide(index: AclIndex, principal: str, host: str, operation: Operation, resource: Resource) -> AclDecision:
    """Returns a denial if there is one, else a permission, else that no rule decides. The caller knows the default."""
    allowing: AclRecord | None = None
    any_rule = False
    for acl in index.of_resource(resource):
        any_rule = True
        if not _is_of(acl, principal, host) or not _covers(acl, operation):
            continue
        if acl.permission != Permission.ALLOW:
            return AclDecision(allowed=False, rule=acl, any_rule=True)
        allowing = allowing or acl
    return AclDecision(allowed=allowing is not None, rule=allowing, any_rule=any_rule)


def decide_by_type(index: AclIndex, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
    """Returns whether the rules allow the operation on any resource name.

    Implied operations don't count here, as in Kafka.
    """
    allowed: set[Pattern] = set()
    denied: set[Pattern] = set()
    for acl in index.of_type(kind):
        if _is_of(acl, principal, host) and acl.operation in (operation, Operation.ALL):
            (allowed if acl.permission == Permission.ALLOW else denied).add(_pattern(acl))
    everything = (int(kind), int(PatternType.LITERAL), WILDCARD)
    if everything in denied:
        return False
    return everything in allowed or any(not _is_covered(pattern, denied) for pattern in allowed)


def _is_covered(pattern: Pattern, denied: set[Pattern]) -> bool:
    """Returns whether denials cover all names of a pattern."""
    kind, pattern_type, name = pattern
    if pattern_type == PatternType.LITERAL and pattern in denied:
        return True
    return any((kind, PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
