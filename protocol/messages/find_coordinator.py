"""FindCoordinator (key 10): the coordinator of groups or transactional ids.

Version 4 requests many keys at once (KIP-699) of one type: 0 groups, 1 transactional ids, 2 share groups (KIP-932).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, Nullable, String, Versions, versions


@versions("0-6", flexible="3+")
class FindCoordinatorRequest(ApiMessage, kw_only=True):
    """One key, or many from version 4."""

    key: Annotated[String, Versions("0-3")] = ""
    key_type: Annotated[Int8, Versions("1+")] = 0
    coordinator_keys: Annotated[list[String], Versions("4+")] = msgspec.field(default_factory=list)


class Coordinator(Message, kw_only=True):
    key: Annotated[String, Versions("4+")] = ""
    node_id: Annotated[Int32, Versions("4+")] = 0
    host: Annotated[String, Versions("4+")] = ""
    port: Annotated[Int32, Versions("4+")] = 0
    error_code: Annotated[Int16, Versions("4+")] = 0
    error_message: Annotated[String | None, Versions("4+"), Nullable("4+")] = None


@versions("0-6", flexible="3+")
class FindCoordinatorResponse(ApiMessage, kw_only=True):
    """One coordinator; from version 4 one row per key."""

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Annotated[Int16, Versions("0-3")] = 0
    error_message: Annotated[String | None, Versions("1-3"), Nullable("1-3")] = None
    node_id: Annotated[Int32, Versions("0-3")] = 0
    host: Annotated[String, Versions("0-3")] = ""
    port: Annotated[Int32, Versions("0-3")] = 0
    coordinators: Annotated[list[Coordinator], Versions("4+")] = msgspec.field(default_factory=list)
