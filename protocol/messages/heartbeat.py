"""Heartbeat (key 12): a member of a classic group renews its session, and learns whether it must rejoin."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Nullable, String, Versions, versions


@versions("0-4", flexible="4+")
class HeartbeatRequest(ApiMessage, kw_only=True):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None


@versions("0-4", flexible="4+")
class HeartbeatResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16
