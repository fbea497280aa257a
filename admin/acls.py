"""Rules of access control (KIP-140): created, found and removed.

Names are Kafka's. `*` is any resource of the type, or any host; the principal `User:*` is every principal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lowtide.admin.anywhere import outcome_of_error, to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.cluster import BrokerHandle, raise_for_error
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from lowtide.protocol.messages.describe_acls import DescribeAclsRequest

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.errors import AdminError
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.types import BrokerId


FilterT = TypeVar("FilterT", DescribeAclsRequest, DeleteAclsFilter)


class Acl(NamedTuple):
    """One rule."""

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
    """Which rules are meant; None and ANY stand for all."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern: AclPattern = AclPattern.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation = AclOperation.ANY
    permission: AclPermission = AclPermission.ANY

    @classmethod
    def exactly(cls, acl: Acl) -> AclFilter:
        """The filter that means one rule."""
        return cls(*acl)


async def create_acls(cluster: Cluster, acls: Iterable[Acl], deadline: Deadline) -> dict[Acl, AdminError | None]:
    """See `AdminClient.create_acls`."""

    async def send(broker_id: BrokerId, asked: list[Acl], _: int) -> Mapping[Acl, Outcome[None]]:
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
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(CreateAclsRequest(creations=rows))
        return {
            acl: outcome_of_error(acl, row.error_code, row.error_message) if row.error_code else Done(None)
            for acl, row in zip(asked, response.results, strict=True)
        }

    attempts = Attempts[Acl, None](cluster, deadline, to_a_broker(cluster, deadline), send)
    await attempts.run(list(dict.fromkeys(acls)))
    return attempts.results(str)


async def delete_acls(
    cluster: Cluster, filters: Iterable[AclFilter], deadline: Deadline
) -> dict[AclFilter, list[Acl] | AdminError]:
    """See `AdminClient.delete_acls`."""

    async def send(broker_id: BrokerId, asked: list[AclFilter], _: int) -> Mapping[AclFilter, Outcome[list[Acl]]]:
        rows = [_filter(DeleteAclsFilter, each) for each in asked]
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(DeleteAclsRequest(filters=rows))
        found: dict[AclFilter, Outcome[list[Acl]]] = {}
        for each, row in zip(asked, response.filter_results, strict=True):
            error = next((one for one in (row, *row.matching_acls) if one.error_code), None)
            found[each] = (
                Done([_acl(one.resource_type, one.resource_name, one.pattern_type, one) for one in row.matching_acls])
                if error is None
                else outcome_of_error("the rules", error.error_code, error.error_message)
            )
        return found

    attempts = Attempts[AclFilter, list[Acl]](cluster, deadline, to_a_broker(cluster, deadline), send)
    await attempts.run(list(dict.fromkeys(filters)))
    return attempts.results(lambda _filter: "the rules")


async def describe_acls(cluster: Cluster, wanted: AclFilter, deadline: Deadline) -> list[Acl]:
    """See `AdminClient.describe_acls`."""

    async def ask(handle: BrokerHandle) -> list[Acl]:
        response = await handle.ask(_filter(DescribeAclsRequest, wanted))
        raise_for_error(handle, response, "the rules")
        return sorted(
            _acl(each.resource_type, each.resource_name, each.pattern_type, row)
            for each in response.resources
            for row in each.acls
        )

    acls: list[Acl] = await cluster.ask_any(ask, deadline)
    return acls


def _filter(message: type[FilterT], wanted: AclFilter) -> FilterT:
    """The filter as a request, or a row of one, has it."""
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
