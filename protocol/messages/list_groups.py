"""ListGroups (key 16): the groups that this broker coordinates.

Empty filters match everything (KIP-518 states, KIP-848 types).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, String, Versions, versions


@versions("0-5", flexible="3+")
class ListGroupsRequest(ApiMessage, kw_only=True):
    states_filter: Annotated[list[String], Versions("4+")] = msgspec.field(default_factory=list)
    types_filter: Annotated[list[String], Versions("5+")] = msgspec.field(default_factory=list)


class ListedGroup(Message, kw_only=True):
    group_id: String
    protocol_type: String
    group_state: Annotated[String, Versions("4+")] = ""
    group_type: Annotated[String, Versions("5+")] = ""


@versions("0-5", flexible="3+")
class ListGroupsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16
    groups: list[ListedGroup]
