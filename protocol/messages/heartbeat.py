"""Heartbeat (key 12): a member of a classic group renews its session, and learns whether it must rejoin."""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Nullable, String, Versions


class HeartbeatRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("4+")

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, Versions("3+"), Nullable("3+")] = None


class HeartbeatResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("4+")

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Int16
