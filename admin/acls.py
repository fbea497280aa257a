"""Access control lists (KIP-140): describes, creates and deletes ACLs.

Names are Kafka's. The resource name `*` stands for all resources of the type, the host `*` for all hosts, and the
principal `User:*` for all principals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lowtide.admin.arguments import each_of
from lowtide.admin.attempts import Done, Outcome
from lowtide.admin.call import AdminClientBase, failure, outcome
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError
    from lowtide.protocol.types import BrokerId


FilterT = TypeVar("FilterT", DescribeAclsRequest, DeleteAclsFilter)


class Acl(NamedTuple):
    """An access control list entry: allows or denies a principal an operation on resources."""

    resource_type: AclResourceType
    resource_name: str
    pattern: AclPattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission

    def __str__(self) -> str:
        name = f"{self.resource_name}{'…' if self.pattern is AclPattern.PREFIXED else ''}"
        host = "" if self.host == "*" else f" from {self.host}"
        verb = self.permission.name.lower()
        return f"{verb} {self.principal} {self.operation.name}{host} on {self.resource_type.name.lower()} {name}"


class AclFilter(NamedTuple):
    """Selects ACLs; None and ANY match everything."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern: AclPattern = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    @classmethod
    def exactly(cls, acl: Acl) -> AclFilter:
        """Returns the filter that matches one ACL only."""
        return cls(*acl)


async def create_acls(
    client: AdminClientBase, acls: Iterable[Acl], *, timeout: float | None = None
) -> dict[Acl, AdminError | None]:
    """Creates ACLs; None means that all brokers apply it. Creating an ACL that exists succeeds."""
    call = client.call(timeout)

    async def send(broker_id: BrokerId, asked: list[Acl]) -> Mapping[Acl, Outcome[None]]:
        rows = [
            AclCreation(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                resource_pattern_type=acl.pattern,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in asked
        ]
        response = await call.ask(broker_id, CreateAclsRequest(creations=rows))
        return {acl: outcome(acl, row) for acl, row in zip(asked, response.results, strict=True)}

    return await call.each(each_of(Acl, acls, "Acl(...)"), call.to_broker(), send)


async def delete_acls(
    client: AdminClientBase, filters: Iterable[AclFilter], *, timeout: float | None = None
) -> dict[AclFilter, list[Acl] | AdminError]:
    """Deletes all ACLs that match; returns for each filter the deleted ACLs."""
    call = client.call(timeout)

    async def send(broker_id: BrokerId, asked: list[AclFilter]) -> Mapping[AclFilter, Outcome[list[Acl]]]:
        request = DeleteAclsRequest(filters=[_filter(DeleteAclsFilter, each) for each in asked])
        response = await call.ask(broker_id, request)
        found: dict[AclFilter, Outcome[list[Acl]]] = {}
        for each, row in zip(asked, response.filter_results, strict=True):
            error = next((one for one in (row, *row.matching_acls) if one.error_code), None)
            if error is not None:
                found[each] = failure("the ACLs", error.error_code, error.error_message)
            else:
                acls = [_acl(one.resource_type, one.resource_name, one.pattern_type, one) for one in row.matching_acls]
                found[each] = Done(acls)
        return found

    return await call.each(each_of(AclFilter, filters, "AclFilter(...)"), call.to_broker(), send, lambda _: "the ACLs")


async def describe_acls(
    client: AdminClientBase, wanted: AclFilter | None = None, *, timeout: float | None = None
) -> list[Acl]:
    """Returns the ACLs that match, or all.

    Errors: BrokerAnsweredError; SECURITY_DISABLED for a cluster without an authorizer.
    """
    request = _filter(DescribeAclsRequest, wanted or AclFilter())
    response = await client.call(timeout).ask_any(request, "the ACLs")
    return sorted(
        _acl(resource.resource_type, resource.resource_name, resource.pattern_type, row)
        for resource in response.resources
        for row in resource.acls
    )


def _filter(message: type[FilterT], wanted: AclFilter) -> FilterT:
    return message(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _acl(kind: int, name: str, pattern: int, row: Any) -> Acl:
    return Acl(
        AclResourceType(kind),
        name,
        AclPattern(pattern),
        row.principal,
        row.host,
        AclOperation(row.operation),
        AclPermission(row.permission_type),
    )
