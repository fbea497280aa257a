"""AddOffsetsToTxn (key 25): adds the offsets of a group to a transaction (KIP-98)."""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, String, Versions


class AddOffsetsToTxnRequest(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("3+")

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0-4")
    FLEXIBLE: ClassVar = Versions("3+")

    throttle_time_ms: Int32 = 0
    error_code: Int16
