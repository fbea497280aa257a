"""Fetch (key 1): reads record batches, as a consumer or as a follower.

`session_id`, `session_epoch` and `forgotten_topics_data` are KIP-227's incremental fetches. From version 13 topics are
identified by id. `records` may end within a batch, which readers drop.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import (
    NO_ROWS,
    ApiMessage,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    Records,
    String,
    Tagged,
    Uuid,
    Versions,
    versions,
)
from lowtide.protocol.types import ZERO_TOPIC_ID

NO_HIGH_WATERMARK = 2**63 - 1
"""A follower did not send its high watermark (KIP-1166)."""

MAX_BYTES_UNBOUNDED = 0x7FFFFFFF


class ReplicaState(Message, kw_only=True):
    """A follower's broker id and epoch (KIP-903), from version 15; -1 is a consumer."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Message, kw_only=True):
    """`log_start_offset` is the follower's own; consumers send -1."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Versions("9+")] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Versions("12+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, Tagged(0, "17+")] = ZERO_TOPIC_ID
    high_watermark: Annotated[Int64, Tagged(1, "18+")] = NO_HIGH_WATERMARK


class FetchTopic(Message, kw_only=True):
    """A topic by name, from version 13 by id."""

    topic: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = ZERO_TOPIC_ID
    partitions: list[FetchPartition]


class ForgottenTopic(Message, kw_only=True):
    """Partitions that leave the fetch session."""

    topic: Annotated[String, Versions("7-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = ZERO_TOPIC_ID
    partitions: list[Int32]


@versions("4-18", flexible="12+")
class FetchRequest(ApiMessage, kw_only=True):
    """`replica_id` is a follower's broker id up to version 14."""

    cluster_id: Annotated[String | None, Tagged(0, "12+")] = None
    replica_id: Annotated[Int32, Versions("0-14")] = -1
    replica_state: Annotated[ReplicaState | None, Tagged(1, "15+")] = None
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Annotated[Int32, Versions("3+")] = MAX_BYTES_UNBOUNDED
    isolation_level: Annotated[Int8, Versions("4+")] = 0
    session_id: Annotated[Int32, Versions("7+")] = 0
    session_epoch: Annotated[Int32, Versions("7+")] = -1
    topics: list[FetchTopic]
    forgotten_topics_data: Annotated[list[ForgottenTopic], Versions("7+")] = msgspec.field(default_factory=list)
    rack_id: Annotated[String, Versions("11+")] = ""


class EpochEndOffset(Message, kw_only=True):
    """The largest common epoch of the leader's and the follower's log, and its end offset, exclusive (KIP-595)."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


class LeaderIdAndEpoch(Message, kw_only=True):
    """The current leader, for a client that asked another broker (KIP-951)."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class SnapshotId(Message, kw_only=True):
    """A snapshot to fetch instead: only in Kafka's own metadata log."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message, kw_only=True):
    """A producer's records from `first_offset` on, which a read-committed consumer drops (KIP-98)."""

    producer_id: Int64
    first_offset: Int64


class PartitionData(Message, kw_only=True):
    """The high watermark and the last stable offset are exclusive ends."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64
    last_stable_offset: Annotated[Int64, Versions("4+")] = -1
    log_start_offset: Annotated[Int64, Versions("5+")] = -1
    diverging_epoch: Annotated[EpochEndOffset | None, Tagged(0, "12+")] = None
    current_leader: Annotated[LeaderIdAndEpoch | None, Tagged(1, "12+")] = None
    snapshot_id: Annotated[SnapshotId | None, Tagged(2, "12+")] = None
    aborted_transactions: Annotated[list[AbortedTransaction] | None, Versions("4+"), Nullable("4+")] = NO_ROWS
    preferred_read_replica: Annotated[Int32, Versions("11+")] = -1
    records: Records | None


class FetchableTopicResponse(Message, kw_only=True):
    """A topic by name, from version 13 by id."""

    topic: Annotated[String, Versions("0-12")] = ""
    topic_id: Annotated[Uuid, Versions("13+")] = ZERO_TOPIC_ID
    partitions: list[PartitionData]


class NodeEndpoint(Message, kw_only=True):
    """The address of a leader in `current_leader` (KIP-951)."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


@versions("4-18", flexible="12+")
class FetchResponse(ApiMessage, kw_only=True):
    """`error_code` is about the whole session."""

    throttle_time_ms: Annotated[Int32, Versions("1+")] = 0
    error_code: Annotated[Int16, Versions("7+")] = 0
    session_id: Annotated[Int32, Versions("7+")] = 0
    responses: list[FetchableTopicResponse]
    node_endpoints: Annotated[list[NodeEndpoint], Tagged(0, "16+")] = msgspec.field(default_factory=list)
