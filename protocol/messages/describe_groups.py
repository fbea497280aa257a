"""DescribeGroups (key 15): the state and members of classic groups."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int16, Int32, Message, Nullable, String, Versions, versions


@versions("0-6", flexible="5+")
class DescribeGroupsRequest(ApiMessage, kw_only=True):
    groups: list[String]
    include_authorized_operations: Annotated[Bool, Versions("3+")] = False


class DescribedGroupMember(Message, kw_only=True):
    """`member_metadata` and `member_assignment` are set only in a stable group."""

    member_id: String
    group_instance_id: Annotated[String | None, Versions("4+"), Nullable("4+")] = None
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Message, kw_only=True):
    """`protocol_data` is the name of the chosen protocol."""

    error_code: Int16
    error_message: Annotated[String | None, Versions("6+"), Nullable("6+")] = None
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: list[DescribedGroupMember]
    authorized_operations: Annotated[Int32, Versions("3+")] = OPERATIONS_NOT_ASKED


@versions("0-6", flexible="5+")
class DescribeGroupsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    groups: list[DescribedGroup]
