"""DescribeStandingErasures (key 32013): lists the standing erasures of the cluster. Lowtide's own."""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, versions


@versions("0", flexible="0+")
class DescribeStandingErasuresRequest(ApiMessage, kw_only=True):
    """Asks for all of them."""


class StandingErasure(Message, kw_only=True):
    """Times are milliseconds since 1970."""

    erasure_id: Uuid
    topics: list[String]
    patterns: list[String]
    principal: String
    """Who asked for it last."""
    begun_ms: Int64
    ends_ms: Int64
    key_count: Int32


@versions("0", flexible="0+")
class DescribeStandingErasuresResponse(ApiMessage, kw_only=True):
    """With an error of the whole request there are no rows."""

    error_code: Int16
    error_message: String | None = None
    erasures: list[StandingErasure] = msgspec.field(default_factory=list)
