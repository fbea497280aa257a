"""InitProducerId (key 22): assigns a producer id and epoch (KIP-98, KIP-360).

Version 6 (KIP-939) is unstable in Kafka and missing here.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, String, Versions, versions
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


@versions("0-5", flexible="2+")
class InitProducerIdRequest(ApiMessage, kw_only=True):
    """A null transactional id requests idempotence only. The current id and epoch are -1 if there is none."""

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, Versions("3+")] = NO_PRODUCER_ID
    producer_epoch: Annotated[Int16, Versions("3+")] = NO_PRODUCER_EPOCH


@versions("0-5", flexible="2+")
class InitProducerIdResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = NO_PRODUCER_ID
    producer_epoch: Int16
