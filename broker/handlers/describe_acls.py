"""DescribeAcls: v1-v3.

Behaviour: the rules of access control that a filter means, as this broker decides by them, together by the pattern of
their resources.

Version notes: v1 has pattern types, v2 is flexible, v3 has user resources.

Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED without an authorizer, INVALID_REQUEST for a filter of an
unknown kind.

KIPs: 140, 290, 373.
"""

from __future__ import annotations

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.authorizer.acls import AclFilter
from lowtide.broker.guards import cluster as guards
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


def handler(administrator: AclAdministrator) -> HandlerSpec:
    """The handler over a cluster's rules."""

    async def handle(request: DescribeAclsRequest, _context: RequestContext) -> DescribeAclsResponse:
        if not administrator.is_enabled:
            return DescribeAclsResponse(
                error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
            )
        wanted = AclFilter.asked(request)
        if wanted.fault is not None:
            return DescribeAclsResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=wanted.fault)
        patterns: dict[tuple[int, str, int], list[AclRecord]] = {}
        for acl in (await administrator.find(wanted)).values():
            patterns.setdefault((acl.resource_type, acl.resource_name, acl.pattern_type), []).append(acl)
        return DescribeAclsResponse(
            error_code=ErrorCode.NONE, resources=[_resource(*each, acls) for each, acls in patterns.items()]
        )

    return HandlerSpec(key=ApiKey.DESCRIBE_ACLS, guard=guards.describe_acls, handle_later=handle)


def _resource(kind: int, name: str, pattern_type: int, acls: list[AclRecord]) -> DescribeAclsResource:
    rows = [
        AclDescription(principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission)
        for acl in acls
    ]
    return DescribeAclsResource(resource_type=kind, resource_name=name, pattern_type=pattern_type, acls=rows)
