"""ShareAcknowledge (key 79): a member acknowledges records that it acquired (KIP-932, KIP-1222).

Version 0 was an early access version of Kafka 4.0.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    Versions,
    versions,
)

FINAL_EPOCH: Final = -1
"""Closes the share session, and releases the acquired records."""

INITIAL_EPOCH: Final = 0
"""Opens or resets a share session. Only ShareFetch can do this."""


class ShareAcknowledgementBatch(Message, kw_only=True):
    """The outcome for records; both offsets are inclusive.

    One type applies to all offsets, or there is one per offset: 0 gap, 1 accept, 2 release, 3 reject, 4 renew
    (KIP-1222).
    """

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: list[Int8]


class ShareAcknowledgePartition(Message, kw_only=True):
    partition_index: Int32
    acknowledgement_batches: list[ShareAcknowledgementBatch]


class ShareAcknowledgeTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[ShareAcknowledgePartition]


@versions("1-2", flexible="0+")
class ShareAcknowledgeRequest(ApiMessage, kw_only=True):
    """Acknowledgements of a member in its share session."""

    group_id: String | None = None
    member_id: String | None
    share_session_epoch: Int32
    is_renew_ack: Annotated[Bool, Versions("2+")] = False
    topics: list[ShareAcknowledgeTopic]


class ShareLeaderIdAndEpoch(Message, kw_only=True):
    """The current leader if it changed; -1 if unknown."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class ShareAcknowledgedPartition(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: ShareLeaderIdAndEpoch = msgspec.field(default_factory=ShareLeaderIdAndEpoch)


class ShareAcknowledgedTopic(Message, kw_only=True):
    topic_id: Uuid
    partitions: list[ShareAcknowledgedPartition]


class ShareNodeEndpoint(Message, kw_only=True):
    """The address of a leader in a row."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


@versions("1-2", flexible="0+")
class ShareAcknowledgeResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Versions("2+")] = 0
    responses: list[ShareAcknowledgedTopic] = msgspec.field(default_factory=list)
    node_endpoints: list[ShareNodeEndpoint] = msgspec.field(default_factory=list)
