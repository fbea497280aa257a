"""WriteTxnMarkers (key 27): a transaction coordinator writes the end of transactions to partitions (KIP-98)."""

from __future__ import annotations

from typing import Annotated

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Int64, Message, String, Versions, versions


class WritableTxnMarkerTopic(Message, kw_only=True):
    name: String
    partition_indexes: list[Int32]


class WritableTxnMarker(Message, kw_only=True):
    """`transaction_result` is true for a commit. From `transaction_version` 2 each transaction has its own epoch."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool
    topics: list[WritableTxnMarkerTopic]
    coordinator_epoch: Int32
    transaction_version: Annotated[Int8, Versions("2+")] = 0


@versions("1-2", flexible="1+")
class WriteTxnMarkersRequest(ApiMessage, kw_only=True):
    markers: list[WritableTxnMarker]


class WritableTxnMarkerPartitionResult(Message, kw_only=True):
    partition_index: Int32
    error_code: Int16


class WritableTxnMarkerTopicResult(Message, kw_only=True):
    name: String
    partitions: list[WritableTxnMarkerPartitionResult]


class WritableTxnMarkerResult(Message, kw_only=True):
    producer_id: Int64
    topics: list[WritableTxnMarkerTopicResult]


@versions("1-2", flexible="1+")
class WriteTxnMarkersResponse(ApiMessage, kw_only=True):
    markers: list[WritableTxnMarkerResult]
