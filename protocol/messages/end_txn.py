"""EndTxn (key 26): commits or aborts a transaction (KIP-98), and returns the epoch of the next one (KIP-890)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, String, Versions, versions
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


@versions("0-5", flexible="3+")
class EndTxnRequest(ApiMessage, kw_only=True):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


@versions("0-5", flexible="3+")
class EndTxnResponse(ApiMessage, kw_only=True):
    """The result, and the producer id and epoch for the next transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, Versions("5+")] = NO_PRODUCER_ID
    producer_epoch: Annotated[Int16, Versions("5+")] = NO_PRODUCER_EPOCH
