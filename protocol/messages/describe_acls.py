"""DescribeAcls (key 29): rules of access control that a filter means.

Field by field this is Kafka's DescribeAclsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, Versions


class DescribeAclsRequest(ApiMessage, kw_only=True):
    """The filter: null and 1 (ANY) stand for everything."""

    VERSIONS: ClassVar = Versions("1-3")
    FLEXIBLE: ClassVar = Versions("2+")

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


class AclDescription(Message, kw_only=True):
    """What one rule says about the resources."""

    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Message, kw_only=True):
    """All rules with one pattern of resources."""

    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: list[AclDescription]


class DescribeAclsResponse(ApiMessage, kw_only=True):
    """The rules, by pattern."""

    VERSIONS: ClassVar = Versions("1-3")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None = None
    resources: list[DescribeAclsResource] = msgspec.field(default_factory=list)
