"""CreateAcls (key 30): creates ACLs."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, versions


class AclCreation(Message, kw_only=True):
    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


@versions("1-3", flexible="2+")
class CreateAclsRequest(ApiMessage, kw_only=True):
    creations: list[AclCreation]


class AclCreationResult(Message, kw_only=True):
    """One per rule, in the order of the request."""

    error_code: Int16
    error_message: String | None = None


@versions("1-3", flexible="2+")
class CreateAclsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult]
