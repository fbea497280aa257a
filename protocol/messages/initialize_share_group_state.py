"""InitializeShareGroupState (key 83): a group coordinator has the share coordinator begin the state of share partitions.

Field by field this is Kafka's InitializeShareGroupStateRequest/Response (KIP-932).
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Int16, Int32, Int64, Message, String, Uuid, Versions


class InitializeStatePartition(Message, kw_only=True):
    """One share partition. `start_offset` is -1 where the partition's leader is to find it."""

    partition: Int32
    state_epoch: Int32
    start_offset: Int64


class InitializeStateTopic(Message, kw_only=True):
    """One topic."""

    topic_id: Uuid
    partitions: list[InitializeStatePartition]


class InitializeShareGroupStateRequest(ApiMessage, kw_only=True):
    """Share partitions of one group."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    group_id: String
    topics: list[InitializeStateTopic]


class InitializeStatePartitionResult(Message, kw_only=True):
    """The answer about one share partition."""

    partition: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Message, kw_only=True):
    """The answer about one topic."""

    topic_id: Uuid
    partitions: list[InitializeStatePartitionResult]


class InitializeShareGroupStateResponse(ApiMessage, kw_only=True):
    """The answer, share partition by share partition."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("0+")

    results: list[InitializeStateResult]
