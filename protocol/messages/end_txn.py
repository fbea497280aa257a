"""EndTxn (key 26): a producer commits or aborts its transaction (KIP-98), and gets the epoch of the next one (KIP-890).

Field by field this is Kafka's EndTxnRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Int64, String, Versions
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class EndTxnRequest(ApiMessage, kw_only=True):
    """Which transaction, and how it ends."""

    VERSIONS: ClassVar = Versions("0-5")
    FLEXIBLE: ClassVar = Versions("3+")

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(ApiMessage, kw_only=True):
    """The result, and the id and epoch with which the producer continues."""

    VERSIONS: ClassVar = Versions("0-5")
    FLEXIBLE: ClassVar = Versions("3+")

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, Versions("5+")] = NO_PRODUCER_ID
    producer_epoch: Annotated[Int16, Versions("5+")] = NO_PRODUCER_EPOCH
