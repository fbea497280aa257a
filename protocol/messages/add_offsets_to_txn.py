"""AddOffsetsToTxn (key 25): a transaction is going to commit offsets of a group (KIP-98).

Field by field this is Kafka's AddOffsetsToTxnRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, String, Versions


class AddOffsetsToTxnRequest(ApiMessage, kw_only=True):
    """Of which group, in whose transaction."""

    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("3+")

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(ApiMessage, kw_only=True):
    """The answer."""

    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("3+")

    throttle_time_ms: Int32 = 0
    error_code: Int16
