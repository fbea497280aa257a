"""ElectLeaders (key 43): have partitions elect their leaders now (KIP-183, KIP-460).

Version 0 knows preferred elections only. Null topics ask for all partitions. Field by field this is Kafka's
ElectLeadersRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, Nullable, String, Versions

PREFERRED: int = 0
UNCLEAN: int = 1
"""The types of election."""


class ElectLeadersTopicPartitions(Message, kw_only=True):
    """Partitions of a topic."""

    topic: String
    partitions: list[Int32]


class ElectLeadersRequest(ApiMessage, kw_only=True):
    """Partitions that are to elect leaders."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    election_type: Annotated[Int8, Versions("1+")] = PREFERRED
    topic_partitions: Annotated[list[ElectLeadersTopicPartitions] | None, Nullable("0+")]
    timeout_ms: Int32 = 60_000


class ElectLeadersPartitionResult(Message, kw_only=True):
    """One partition's election, or why there was none."""

    partition_id: Int32
    error_code: Int16
    error_message: String | None = None


class ElectLeadersTopicResult(Message, kw_only=True):
    """Elections in a topic."""

    topic: String
    partition_result: list[ElectLeadersPartitionResult]


class ElectLeadersResponse(ApiMessage, kw_only=True):
    """The answer. `error_code` is about the request as a whole."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Versions("1+")] = 0
    replica_election_results: list[ElectLeadersTopicResult]
