"""DeleteAcls: v1-v3.

Behaviour: removes all rules of access control that filters mean, ten thousand at most, and answers with them when all
brokers decide without them. What a request removes is one change, which is made whole or not at all.

Version notes: v1 has pattern types, v2 is flexible, v3 has user resources.

Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED without an authorizer; of single filters INVALID_REQUEST,
UNKNOWN_SERVER_ERROR for too many rules, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE, NOT_CONTROLLER when this broker
was given up.

KIPs: 140, 290, 373.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.authorizer.acls import AclFilter
from lowtide.broker.guards import cluster as guards
from lowtide.broker.guards.audited_requests import DELETED_ACLS
from lowtide.broker.handlers.create_acls import DISABLED
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from lowtide.replication.refusal import Refusal


def handler(administrator: AclAdministrator) -> HandlerSpec:
    """The handler over a cluster's rules."""

    async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
        if not administrator.is_enabled:
            return DeleteAclsResponse(filter_results=[_refused(DISABLED)] * len(request.filters))
        outcomes = await administrator.remove([AclFilter.asked(each) for each in request.filters])
        removed = {key: acl for each in outcomes if not isinstance(each, Refusal) for key, acl in each.items()}
        if removed:
            first = str(next(iter(removed.values())))
            administrator.broker.log.info(
                "acls removed", principal=str(context.principal), count=len(removed), first=first
            )
        return DeleteAclsResponse(
            filter_results=[
                _refused(each) if isinstance(each, Refusal) else _removed(each.values()) for each in outcomes
            ]
        )

    return HandlerSpec(key=ApiKey.DELETE_ACLS, guard=guards.delete_acls, handle_later=handle, audit=DELETED_ACLS)


def _refused(refusal: Refusal) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=refusal.error_code, error_message=refusal.message)


def _removed(acls: Iterable[AclRecord]) -> DeleteAclsFilterResult:
    rows = [
        DeleteAclsMatchingAcl(
            error_code=ErrorCode.NONE,
            resource_type=acl.resource_type,
            resource_name=acl.resource_name,
            pattern_type=acl.pattern_type,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        for acl in acls
    ]
    return DeleteAclsFilterResult(error_code=ErrorCode.NONE, matching_acls=rows)
