"""ElectLeaders (key 43): elects leaders of partitions now (KIP-183, KIP-460).

Version 0 has preferred elections only. Null topics request all partitions.
"""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, Nullable, String, Versions, versions

PREFERRED: int = 0
UNCLEAN: int = 1
"""The types of elections."""


class ElectLeadersTopicPartitions(Message, kw_only=True):
    topic: String
    partitions: list[Int32]


@versions("0-2", flexible="2+")
class ElectLeadersRequest(ApiMessage, kw_only=True):
    election_type: Annotated[Int8, Versions("1+")] = PREFERRED
    topic_partitions: Annotated[list[ElectLeadersTopicPartitions] | None, Nullable("0+")]
    timeout_ms: Int32 = 60_000


class ElectLeadersPartitionResult(Message, kw_only=True):
    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


class ElectLeadersTopicResult(Message, kw_only=True):
    topic: String
    partition_result: list[ElectLeadersPartitionResult]


@versions("0-2", flexible="2+")
class ElectLeadersResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("1+")] = 0
    replica_election_results: list[ElectLeadersTopicResult]
