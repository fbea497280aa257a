"""LeaveGroup (key 13): members leave a classic group; from version 3 several, also by instance id (KIP-345)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Message, Nullable, String, Versions, versions


class MemberIdentity(Message, kw_only=True):
    """A member by its id, or a static one by its instance id with an empty id."""

    member_id: Annotated[String, Versions("3+")] = ""
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    reason: Annotated[String | None, Versions("5+"), Nullable("5+")] = None


@versions("0-5", flexible="4+")
class LeaveGroupRequest(ApiMessage, kw_only=True):
    group_id: String
    member_id: Annotated[String, Versions("0-2")] = ""
    members: Annotated[list[MemberIdentity], Versions("3+")] = msgspec.field(default_factory=list)


class MemberResponse(Message, kw_only=True):
    member_id: Annotated[String, Versions("3+")] = ""
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None
    error_code: Annotated[Int16, Versions("3+")] = 0


@versions("0-5", flexible="4+")
class LeaveGroupResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16
    members: Annotated[list[MemberResponse], Versions("3+")] = msgspec.field(default_factory=list)
