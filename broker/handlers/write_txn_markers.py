"""WriteTxnMarkers: v1-v2.

Behaviour: writes the markers of ended transactions to partitions that are led here, for the transactions' coordinator.
Each row is answered when its marker is committed.

Version notes: v2 marks transactions with their own epochs: their markers can't end the next transaction (KIP-890).

Errors: CLUSTER_AUTHORIZATION_FAILED; of single partitions those of `MarkerWriter.write`, among them
INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED.

KIPs: 98, 890.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import CLUSTER, Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.transactions.marker_sender import TIMEOUT_MS
from lowtide.broker.coordinator.transactions.marker_writer import MarkerWriter, TransactionEnd
from lowtide.broker.coordinator.transactions.transaction import EPOCH_BUMPS_SINCE
from lowtide.broker.guards.guard import CHECKS_ITSELF
from lowtide.broker.joined_parts import JoinedParts
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from lowtide.protocol.types import TopicPartition

CUT: Final = Cut(
    levels=(("markers", "markers"), ("topics", "topics"), ("partition_indexes", "partitions")), changes=True
)


def handler(broker: BrokerContext, writer: MarkerWriter) -> HandlerSpec:
    """Returns the handler."""

    def handle(request: WriteTxnMarkersRequest, context: RequestContext) -> Answer[WriteTxnMarkersResponse]:
        errors: dict[tuple[int, TopicPartition], ErrorCode] = {}
        joined = JoinedParts(lambda: _response(request, errors))
        joined.expect(sum(len(_keys(marker)) for marker in request.markers))

        def done(index: int, key: TopicPartition, error: ErrorCode) -> None:
            errors[(index, key)] = error
            joined.arrived()

        authorizer = broker.authorizer
        may = authorizer.authorize(context, Operation.ALTER, CLUSTER, Audit.ALLOWED)
        may = may or authorizer.authorize(context, Operation.CLUSTER_ACTION, CLUSTER)
        for index, marker in enumerate(request.markers):
            if may:
                writer.write(_end(marker), _keys(marker), partial(done, index), timeout_ms=TIMEOUT_MS)
            else:
                for key in _keys(marker):
                    done(index, key, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return joined.answer()

    return HandlerSpec(
        key=ApiKey.WRITE_TXN_MARKERS,
        guard=CHECKS_ITSELF,
        handle=handle,
        cut=CUT,
        between_brokers=True,
    )


def _keys(marker: WritableTxnMarker) -> list[TopicPartition]:
    return list(
        dict.fromkeys(
            TopicPartition(topic.name, number) for topic in marker.topics for number in topic.partition_indexes
        )
    )


def _end(marker: WritableTxnMarker) -> TransactionEnd:
    is_bumped = marker.transaction_version >= EPOCH_BUMPS_SINCE
    return TransactionEnd(
        marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch, is_bumped
    )


def _response(
    request: WriteTxnMarkersRequest, errors: dict[tuple[int, TopicPartition], ErrorCode]
) -> WriteTxnMarkersResponse:
    markers = []
    for index, marker in enumerate(request.markers):
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for key in _keys(marker):
            row = WritableTxnMarkerPartitionResult(partition_index=key.partition, error_code=errors[(index, key)])
            topics.setdefault(key.topic, []).append(row)
        rows = [WritableTxnMarkerTopicResult(name=name, partitions=partitions) for name, partitions in topics.items()]
        markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=rows))
    return WriteTxnMarkersResponse(markers=markers)
