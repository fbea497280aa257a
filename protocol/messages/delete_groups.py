"""DeleteGroups (key 42): groups without members are forgotten, with their offsets (KIP-229).

Field by field this is Kafka's DeleteGroupsRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, Nullable, String, Versions


class DeleteGroupsRequest(ApiMessage, kw_only=True):
    """Which groups."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    groups_names: list[String]


class DeletableGroupResult(Message, kw_only=True):
    """Forgotten, or why not."""

    group_id: String
    error_code: Int16
    error_message: Annotated[String | None, Versions("3+"), Nullable("3+")] = None


class DeleteGroupsResponse(ApiMessage, kw_only=True):
    """The answer, group by group."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult]
