"""DescribeAcls (key 29): the ACLs that a filter matches."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, versions


@versions("1-3", flexible="2+")
class DescribeAclsRequest(ApiMessage, kw_only=True):
    """Null and 1 (ANY) match everything."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class AclDescription(Message, kw_only=True):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Message, kw_only=True):
    """All rules with one resource pattern."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: list[AclDescription]


@versions("1-3", flexible="2+")
class DescribeAclsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    resources: list[DescribeAclsResource] = msgspec.field(default_factory=list)
