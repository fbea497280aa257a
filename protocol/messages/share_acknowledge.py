"""ShareAcknowledge (key 79): a member tells what became of the records that it acquired.

Field by field this is Kafka's ShareAcknowledgeRequest/Response (KIP-932, KIP-1222). Version 0 was of Kafka 4.0's
early access.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Int64, Message, String, Uuid, Versions

FINAL_EPOCH: Final = -1
"""Closes the share session, and releases what the member still has."""

INITIAL_EPOCH: Final = 0
"""Opens a share session, or begins it again. Only ShareFetch may."""


class ShareAcknowledgementBatch(Message, kw_only=True):
    """What became of records; both offsets are inclusive.

    One acknowledge type stands for all offsets, or there is one for each: 0 gap, 1 accept, 2 release, 3 reject, 4 renew
    (KIP-1222).
    """

    first_offset: Int64
    last_offset: Int64
    acknowledge_types: list[Int8]


class ShareAcknowledgePartition(Message, kw_only=True):
    """One partition."""

    partition_index: Int32
    acknowledgement_batches: list[ShareAcknowledgementBatch]


class ShareAcknowledgeTopic(Message, kw_only=True):
    """One topic."""

    topic_id: Uuid
    partitions: list[ShareAcknowledgePartition]


class ShareAcknowledgeRequest(ApiMessage, kw_only=True):
    """Acknowledgements of a member within its share session."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("0+")

    group_id: String | None = None
    member_id: String | None
    share_session_epoch: Int32
    is_renew_ack: Annotated[Bool, Versions("2+")] = False
    topics: list[ShareAcknowledgeTopic]


class ShareLeaderIdAndEpoch(Message, kw_only=True):
    """The leader where the one that was asked leads no longer; -1 where it is unknown."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class ShareAcknowledgedPartition(Message, kw_only=True):
    """The answer about one partition."""

    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: ShareLeaderIdAndEpoch = msgspec.field(default_factory=ShareLeaderIdAndEpoch)


class ShareAcknowledgedTopic(Message, kw_only=True):
    """The answer about one topic."""

    topic_id: Uuid
    partitions: list[ShareAcknowledgedPartition]


class ShareNodeEndpoint(Message, kw_only=True):
    """Where a leader that a row names is reached."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


class ShareAcknowledgeResponse(ApiMessage, kw_only=True):
    """The answer, partition by partition."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Versions("2+")] = 0
    responses: list[ShareAcknowledgedTopic] = msgspec.field(default_factory=list)
    node_endpoints: list[ShareNodeEndpoint] = msgspec.field(default_factory=list)
