"""DescribeAcls: v1-v3.

Behaviour: returns the access rules that a filter matches, as this broker decides by them, grouped by resource pattern.

Version notes: v1 has pattern types, v2 is flexible, v3 has user resources.

Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED without an authorizer, INVALID_REQUEST for an invalid filter.

KIPs: 140, 290, 373.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.authorizer.acls import AclSelector
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from lowtide.replication.refusal import Refusal

DISABLED: Final = Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")


def handler(administrator: AclAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
        if not administrator.is_enabled:
            return refused(request, context.api_version, DISABLED)
        wanted = AclSelector.asked(request)
        if wanted.fault is not None:
            return refused(request, context.api_version, Refusal(ErrorCode.INVALID_REQUEST, wanted.fault))
        patterns: dict[tuple[int, str, int], list[AclRecord]] = {}
        for acl in (await administrator.find(wanted)).values():
            patterns.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
        return DescribeAclsResponse(
            error_code=ErrorCode.NONE, resources=[_resource(*each, acls) for each, acls in patterns.items()]
        )

    return HandlerSpec(key=ApiKey.DESCRIBE_ACLS, guard=on_cluster(Operation.DESCRIBE, refused), handle_later=handle)


def refused(_request: DescribeAclsRequest, _version: int, refusal: Refusal) -> DescribeAclsResponse:
    """Returns the answer to a request that is refused."""
    return DescribeAclsResponse(**outcome_fields(refusal))


def _resource(kind: int, name: str, pattern_type: int, acls: list[AclRecord]) -> DescribeAclsResource:
    rows = [
        AclDescription(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission)
        for acl in acls
    ]
    return DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern_type, acls=rows)
