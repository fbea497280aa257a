"""SyncGroup (key 14): the leader of a classic group sends the assignment, and each member receives its own."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int32, Message, Nullable, String, Versions, versions


class SyncGroupRequestAssignment(Message, kw_only=True):
    member_id: String
    assignment: Bytes


@versions("0-5", flexible="4+")
class SyncGroupRequest(ApiMessage, kw_only=True):
    """Only the leader sends assignments."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    protocol_type: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    protocol_name: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    assignments: list[SyncGroupRequestAssignment]


@versions("0-5", flexible="4+")
class SyncGroupResponse(ApiMessage, kw_only=True):
    """The assignment of this member."""

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16
    protocol_type: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    protocol_name: Annotated[String | None, Versions("5+"), Nullable("5+")] = None
    assignment: Bytes
