"""DescribeGroups (key 15): state and members of classic groups.

Field by field this is Kafka's DescribeGroupsRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int16, Int32, Message, Nullable, String, Versions


class DescribeGroupsRequest(ApiMessage, kw_only=True):
    """Which groups."""

    VERSIONS: ClassVar = Versions("0-6")
    FLEXIBLE: ClassVar = Versions("5+")

    groups: list[String]
    include_authorized_operations: Annotated[Bool, Versions("3+")] = False


class DescribedGroupMember(Message, kw_only=True):
    """A member; metadata and assignment are there for a stable group only."""

    member_id: String
    group_instance_id: Annotated[String | None, Versions("4+"), Nullable("4+")] = None
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Message, kw_only=True):
    """A group; `protocol_data` is the name of the chosen protocol."""

    error_code: Int16
    error_message: Annotated[String | None, Versions("6+"), Nullable("6+")] = None
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: list[DescribedGroupMember]
    authorized_operations: Annotated[Int32, Versions("3+")] = OPERATIONS_NOT_ASKED


class DescribeGroupsResponse(ApiMessage, kw_only=True):
    """The answer, group by group."""

    VERSIONS: ClassVar = Versions("0-6")
    FLEXIBLE: ClassVar = Versions("5+")

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    groups: list[DescribedGroup]
