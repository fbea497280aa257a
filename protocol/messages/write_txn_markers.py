"""WriteTxnMarkers (key 27): a transaction coordinator has leaders of partitions write how transactions ended (KIP-98).

Field by field this is Kafka's WriteTxnMarkersRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Int64, Message, String, Versions


class WritableTxnMarkerTopic(Message, kw_only=True):
    """Partitions of one topic."""

    name: String
    partition_indexes: list[Int32]


class WritableTxnMarker(Message, kw_only=True):
    """The end of one transaction; `transaction_result` is true for a commit.

    From `transaction_version` 2 on each has its own epoch.
    """

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Versions("2+")] = 0


class WriteTxnMarkersRequest(ApiMessage, kw_only=True):
    """The markers."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("1+")

    markers: list[WritableTxnMarker]


class WritableTxnMarkerPartitionResult(Message, kw_only=True):
    """Whether the marker is committed in a partition."""

    partition_index: Int32
    error_code: Int16


class WritableTxnMarkerTopicResult(Message, kw_only=True):
    """The partitions of one topic."""

    name: String
    partitions: list[WritableTxnMarkerPartitionResult]


class WritableTxnMarkerResult(Message, kw_only=True):
    """What became of one marker."""

    producer_id: Int64
    topics: list[WritableTxnMarkerTopicResult]


class WriteTxnMarkersResponse(ApiMessage, kw_only=True):
    """What became of the markers."""

    VERSIONS: ClassVar = Versions("1-2")
    FLEXIBLE: ClassVar = Versions("1+")

    markers: list[WritableTxnMarkerResult]
