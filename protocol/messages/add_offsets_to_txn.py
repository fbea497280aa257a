"""AddOffsetsToTxn (key 25): adds the offsets of a group to a transaction (KIP-98)."""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, String, versions


@versions("0-4", flexible="3+")
class AddOffsetsToTxnRequest(ApiMessage, kw_only=True):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


@versions("0-4", flexible="3+")
class AddOffsetsToTxnResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
