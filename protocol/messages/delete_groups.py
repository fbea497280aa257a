"""DeleteGroups (key 42): deletes groups without members, with their offsets (KIP-229)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, Nullable, String, Versions, versions


@versions("0-3", flexible="2+")
class DeleteGroupsRequest(ApiMessage, kw_only=True):
    groups_names: list[String]


class DeletableGroupResult(Message, kw_only=True):
    group_id: String
    error_code: Int16
    error_message: Annotated[String | None, Versions("3+"), Nullable("3+")] = None


@versions("0-3", flexible="2+")
class DeleteGroupsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult]
