"""CreateAcls: v1-v3.

Behaviour: creates rules of access control, and answers when all brokers decide by them. A rule that is there already is
created too, as in Kafka. A host is kept in the normal form of its address, and one that is neither an address nor `*`
is refused; Kafka compares text. At most a hundred rules are one change, which is made whole or not at all.

Version notes: v1 has pattern types, v2 is flexible, v3 has user resources.

Errors: CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED without an authorizer; of single rules INVALID_REQUEST,
POLICY_VIOLATION for too many rules in all, or too much at once, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE,
NOT_CONTROLLER when this broker was given up.

KIPs: 140, 290, 373.
"""

from __future__ import annotations

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.authorizer.acls import fault_of
from lowtide.broker.guards import cluster as guards
from lowtide.broker.guards.audited_requests import CREATED_ACLS
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from lowtide.replication.refusal import Refusal
from lowtide.runtime.addresses import in_normal_form

DISABLED = Refusal(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


def handler(administrator: AclAdministrator) -> HandlerSpec:
    """The handler over a cluster's rules."""

    async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
        if not administrator.is_enabled:
            return CreateAclsResponse(results=[_result(DISABLED)] * len(request.creations))
        wanted = [_acl(each) for each in request.creations]
        faults = [fault_of(acl) for acl in wanted]
        valid = [acl for acl, fault in zip(wanted, faults, strict=True) if fault is None]
        made = iter(await administrator.create(valid) if valid else ())
        outcomes = [next(made) if fault is None else Refusal(ErrorCode.INVALID_REQUEST, fault) for fault in faults]
        created = [str(acl) for acl, outcome in zip(wanted, outcomes, strict=True) if outcome is None]
        if created:
            administrator.broker.log.info(
                "acls created", principal=str(context.principal), count=len(created), first=created[0]
            )
        return CreateAclsResponse(results=[_result(outcome) for outcome in outcomes])

    return HandlerSpec(key=ApiKey.CREATE_ACLS, guard=guards.create_acls, handle_later=handle, audit=CREATED_ACLS)


def _acl(asked: AclCreation) -> AclRecord:
    return AclRecord(
        asked.resource_type,
        asked.resource_name,
        asked.resource_pattern_type,
        asked.principal,
        in_normal_form(asked.host),
        asked.operation,
        asked.permission_type,
    )


def _result(refusal: Refusal | None) -> AclCreationResult:
    if refusal is None:
        return AclCreationResult(error_code=ErrorCode.NONE)
    return AclCreationResult(error_code=refusal.error_code, error_message=refusal.message)
