"""Checks Kafka's access rules, and matches them with filters.

Sources: Kafka's `AclBinding`, `AclBindingFilter`, `ResourcePatternFilter`, `AclControlManager.validateNewAcl`,
`AclApis`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.broker.authorizer.resources import CLUSTER_NAME, Operation, ResourceType
from lowtide.broker.security.principal import parse_principal
from lowtide.metadata.records import AclRecord
from lowtide.protocol.acl_values import AclPattern, AclPermission
from lowtide.protocol.messages.delete_acls import DeleteAclsFilter
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest
from lowtide.runtime.addresses import in_normal_form, normal_address, normal_range

WILDCARD: Final = "*"
"""As the name of a literal pattern, all resources of the type. As a host, any host."""

EVERYBODY: Final = "User:*"
"""The principal of rules for everyone. No other wildcard is valid."""


PatternType = AclPattern
"""How a name stands for resources. Only filters use ANY and MATCH."""

Permission = AclPermission
"""Whether a rule allows or denies. Only filters use ANY."""

_TYPES = frozenset(ResourceType) - {ResourceType.ANY}
_OPERATIONS = frozenset(Operation) - {Operation.ANY}


def fault_of(acl: AclRecord) -> str | None:  # noqa: PLR0911  one for each
    """Returns why a rule is invalid, or None."""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Resource name should not be empty"
    if acl.resource_type not in _TYPES:
        return f"Invalid resourceType {acl.resource_type}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type}"
    if acl.operation not in _OPERATIONS:
        return f"Invalid operation {acl.operation}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {acl.permission}"
    if not acl.host:
        return "The host should not be empty"
    if acl.host != WILDCARD and normal_address(acl.host) is None and normal_range(acl.host) is None:
        if "/" in acl.host:
            return f"Invalid CIDR notation '{acl.host}': expected an IPv4 or IPv6 address, a slash and a prefix length"
        return (
            f"The host {acl.host} is no IP address, so the rule would match no client; allowed are an address, a range "
            f"such as 10.0.0.0/8, and {WILDCARD}"
        )
    try:
        parse_principal(acl.principal)
    except ValueError as error:
        return f"Could not parse principal from `{acl.principal}`: {error}"
    return None


class AclSelector(msgspec.Struct, frozen=True):
    """Selects rules. None and ANY match everything, MATCH the rules that apply to a resource of the name."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    @classmethod
    def asked(cls, asked: DescribeAclsRequest | DeleteAclsFilter) -> AclSelector:
        """Returns the filter in a request, or in one of its rows."""
        return cls(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )

    @property
    def fault(self) -> str | None:
        """Returns why the filter is invalid, or None."""
        if (
            self.resource_type not in ResourceType.__members__.values()
            or self.pattern_type not in PatternType.__members__.values()
        ):
            return "Unknown patternFilter."
        if (
            self.operation not in Operation.__members__.values()
            or self.permission not in Permission.__members__.values()
        ):
            return "Unknown entryFilter."
        return None

    def matches(self, acl: AclRecord) -> bool:
        """Returns whether the filter selects a rule."""
        return (
            self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and (self.host is None or in_normal_form(self.host) == in_normal_form(acl.host))
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: AclRecord) -> bool:
        if self.resource_type not in (ResourceType.ANY, acl.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type in (PatternType.ANY, acl.pattern_type):
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.LITERAL:
            return acl.resource_name in (self.resource_name, WILDCARD)
        return self.resource_name.startswith(acl.resource_name)
