"""DeleteAcls (key 31): deletes all ACLs that filters match."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, versions


class DeleteAclsFilter(Message, kw_only=True):
    """Null and 1 (ANY) match everything."""

    resource_type_filter: Int8
    resource_name_filter: String | None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None
    host_filter: String | None
    operation: Int8
    permission_type: Int8


@versions("1-3", flexible="2+")
class DeleteAclsRequest(ApiMessage, kw_only=True):
    filters: list[DeleteAclsFilter]


class DeleteAclsMatchingAcl(Message, kw_only=True):
    """A rule that matched, and whether it was deleted."""

    error_code: Int16
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Message, kw_only=True):
    """One per filter, in the order of the request."""

    error_code: Int16
    error_message: String | None = None
    matching_acls: list[DeleteAclsMatchingAcl] = msgspec.field(default_factory=list)


@versions("1-3", flexible="2+")
class DeleteAclsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult]
