"""ShareFetch (key 78): a member acquires records, and can acknowledge earlier ones (KIP-932, KIP-1206, KIP-1222).

Version 0 was an early access version of Kafka 4.0.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.messages.share_acknowledge import (
    ShareAcknowledgementBatch,
    ShareLeaderIdAndEpoch,
    ShareNodeEndpoint,
)
from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
    Versions,
    versions,
)


class ShareFetchPartition(Message, kw_only=True):
    partition_index: Int32
    acknowledgement_batches: list[ShareAcknowledgementBatch]


class ShareFetchTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[ShareFetchPartition]


class ShareForgottenTopic(Message, kw_only=True):
    """Partitions that leave the share session."""

    topic_id: Uuid
    partitions: list[Int32]


@versions("1-2", flexible="0+")
class ShareFetchRequest(ApiMessage, kw_only=True):
    """Additions to a member's share session, and the limits of the response.

    `share_acquire_mode` is 0 to acquire whole batches, 1 to respect `max_records` (KIP-1206).
    """

    group_id: String | None = None
    member_id: String | None
    share_session_epoch: Int32
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32
    batch_size: Int32
    share_acquire_mode: Annotated[Int8, Versions("2+")] = 0
    is_renew_ack: Annotated[Bool, Versions("2+")] = False
    topics: list[ShareFetchTopic]
    forgotten_topics_data: list[ShareForgottenTopic]


class ShareAcquiredRecords(Message, kw_only=True):
    """Records that the member holds until its lock expires; both offsets are inclusive."""

    first_offset: Int64
    last_offset: Int64
    delivery_count: Int16


class ShareFetchedPartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: ShareLeaderIdAndEpoch = msgspec.field(default_factory=ShareLeaderIdAndEpoch)
    records: Records = b""
    acquired_records: list[ShareAcquiredRecords] = msgspec.field(default_factory=list)


class ShareFetchedTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[ShareFetchedPartition]


@versions("1-2", flexible="0+")
class ShareFetchResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchedTopic] = msgspec.field(default_factory=list)
    node_endpoints: list[ShareNodeEndpoint] = msgspec.field(default_factory=list)
