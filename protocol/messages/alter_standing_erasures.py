"""AlterStandingErasures (key 32012): begins, extends or ends a standing erasure. Lowtide's own.

While an erasure stands, brokers look for its keys in what is written to its topics, and erase the records. A request
has digests of the keys (`key_digest`), no keys. docs/erasure.md.
"""

from __future__ import annotations

import msgspec

from lowtide.protocol.schema import ApiMessage, Bytes, Int16, Int64, String, Uuid, versions


@versions("0", flexible="0+")
class AlterStandingErasuresRequest(ApiMessage, kw_only=True):
    """The erasure stands for `lasts_ms` from now on; with 0 it ends, and only its id matters.

    A repeated request with the same id replaces the earlier one. Without an id the broker only tells that it knows the
    request.
    """

    erasure_id: Uuid
    lasts_ms: Int64
    topics: list[String] = msgspec.field(default_factory=list)
    patterns: list[String] = msgspec.field(default_factory=list)
    """Patterns of topic names, with the wildcards `*`, `?` and `[…]`. They also match topics that are created later."""
    commitment: Bytes = b""
    """That of the erasure with this id, for the ledger."""
    secret: Bytes = b""
    digests: list[Bytes] = msgspec.field(default_factory=list)


@versions("0", flexible="0+")
class AlterStandingErasuresResponse(ApiMessage, kw_only=True):
    """Without an error all registered brokers act on the change."""

    error_code: Int16
    error_message: String | None = None
    ends_ms: Int64 = -1
    """When it ends, in milliseconds since 1970."""
