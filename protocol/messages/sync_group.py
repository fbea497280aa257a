"""SyncGroup (key 14): the leader of a classic group sends the assignment, and each member receives its own."""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Message, Nullable, String, Versions


class SyncGroupRequestAssignment(Message, kw_only=True):
    member_id: String
    assignment: Bytes


class SyncGroupRequest(ApiMessage, kw_only=True):
    """Only the leader sends assignments."""

    VERSIONS: ClassVar = Versions("0-5")
    FLEXIBLE: ClassVar = Versions("4+")

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    protocol_type: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    protocol_name: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(ApiMessage, kw_only=True):
    """The assignment of this member."""

    VERSIONS: ClassVar = Versions("0-5")
    FLEXIBLE: ClassVar = Versions("4+")

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16
    protocol_type: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    protocol_name: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    assignment: Bytes
