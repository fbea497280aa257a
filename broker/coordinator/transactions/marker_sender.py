"""Sends the end of a transaction to the leaders of all its partitions, until each of them has the marker.

Partitions that this broker leads get it at once. Other leaders get requests, one at a time for each broker, with
everything that came meanwhile. A partition that no longer exists needs no marker. If a leader can't be reached, the
marker is sent again, to the leader of that time.

Guards: an end is sent once, and never again while a request with it may be under way; a coordinator that has a
successor sends nothing more.

Source: KIP-98, Kafka's `TransactionMarkerChannelManager`, `TransactionMarkerRequestCompletionHandler`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.transactions.marker_writer import MarkerWriter, TransactionEnd
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.metadata.records import NO_LEADER
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import NONE, ErrorCode
from lowtide.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from lowtide.protocol.types import BrokerId, TopicPartition

MARKERS_PURPOSE: Final = "transactions"
TIMEOUT_MS: Final = 30_000
"""How long a marker may take. Source: Kafka's brokers use `request.timeout.ms`."""

RETRY_S: Final = 0.1
"""The delay before a partition is tried again. Source: Kafka's `retry.backoff.ms`."""

_VERSION: Final = 2
_BUMPED: Final = 2
"""The first version of transactions whose markers have the next epoch."""


class PendingMarkers(msgspec.Struct):
    """The end of one transaction on its way. `left` are the partitions that don't have the marker yet."""

    end: TransactionEnd
    left: set[TopicPartition]
    is_ours: Callable[[], bool]
    """Whether this broker is still the coordinator, in the same leadership."""
    on_sent: Callable[[], None]
    given_up: bool = False


class MarkerSender:
    """Sends markers to the leaders of partitions."""

    def __init__(
        self, broker: BrokerContext, writer: MarkerWriter, peers: PeerClients, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._broker = broker
        self._writer = writer
        self._peers = peers
        self._loop = loop
        self._waiting: dict[BrokerId, list[tuple[PendingMarkers, list[TopicPartition]]]] = {}
        """The markers for each broker that a task is sending to."""
        self._closed = False

    def send(self, sending: PendingMarkers) -> None:
        """Begins to send; `on_sent` is called when all partitions have the marker, not within this call."""
        self._loop.call_soon(self._try, sending, sending.left)

    def close(self) -> None:
        """Stops sending: the broker stops, and the next coordinator continues."""
        self._closed = True

    def _try(self, sending: PendingMarkers, partitions: Iterable[TopicPartition]) -> None:
        """Sends to these partitions, each to its current leader."""
        if sending.given_up or self._closed or not sending.is_ours():
            sending.given_up = True
            return
        image = self._broker.metadata.image
        here: list[TopicPartition] = []
        elsewhere: dict[BrokerId, list[TopicPartition]] = {}
        for key in sorted(partitions):
            topic = image.topics.get(key.topic)
            if topic is None or key.partition >= len(topic.partitions):
                self._on_answer(sending, key, NONE)
                continue
            leader = topic.partitions[key.partition].leader
            if leader == self._broker.metadata.broker_id:
                here.append(key)
            elif leader == NO_LEADER or leader not in image.brokers:
                self._on_answer(sending, key, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                elsewhere.setdefault(leader, []).append(key)
        for broker_id, keys in elsewhere.items():
            self._send_soon(broker_id, sending, keys)
        if here:
            self._writer.write(sending.end, here, partial(self._on_answer, sending), timeout_ms=TIMEOUT_MS)

    def _on_answer(self, sending: PendingMarkers, key: TopicPartition, error: ErrorCode) -> None:
        if sending.given_up or key not in sending.left:
            return
        # A higher epoch means that the partition already has a later end.
        if error in (NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
            sending.left.discard(key)
            if not sending.left:
                sending.on_sent()
        elif error == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            sending.given_up = True
        else:
            self._loop.call_later(RETRY_S, self._try, sending, [key])

    # ------------------------------------------------------------------ other brokers
    def _send_soon(self, broker_id: BrokerId, sending: PendingMarkers, keys: list[TopicPartition]) -> None:
        waiting = self._waiting.get(broker_id)
        if waiting is not None:
            waiting.append((sending, keys))
            return
        self._waiting[broker_id] = [(sending, keys)]
        self._broker.tasks.spawn(self._send(broker_id), name=f"send transaction ends to broker {broker_id}")

    async def _send(self, broker_id: BrokerId) -> None:
        try:
            while self._waiting[broker_id] and not self._closed:
                batch, self._waiting[broker_id] = self._waiting[broker_id], []
                await self._ask(broker_id, [(sending, keys) for sending, keys in batch if sending.is_ours()])
        finally:
            del self._waiting[broker_id]

    async def _ask(self, broker_id: BrokerId, batch: list[tuple[PendingMarkers, list[TopicPartition]]]) -> None:
        errors: dict[tuple[int, TopicPartition], ErrorCode] = {}
        node = self._broker.metadata.image.brokers.get(broker_id)
        if node is not None and batch:
            request = WriteTxnMarkersRequest(markers=[_as_marker(sending.end, keys) for sending, keys in batch])
            try:
                client = self._peers.client_of(node, MARKERS_PURPOSE)
                answer: WriteTxnMarkersResponse = await client.request(
                    ApiKey.WRITE_TXN_MARKERS, _VERSION, request, TIMEOUT_MS
                )
            except PeerError as error:
                self._broker.log.warning(
                    "the ends of transactions could not be sent to a broker", broker=broker_id, reason=str(error)
                )
            else:
                errors = {
                    (marker.producer_id, TopicPartition(topic.name, row.partition_index)): ErrorCode(row.error_code)
                    for marker in answer.markers
                    for topic in marker.topics
                    for row in topic.partitions
                }
        for sending, keys in batch:
            for key in keys:
                self._on_answer(sending, key, errors.get((sending.end.producer_id, key), ErrorCode.REQUEST_TIMED_OUT))


def _as_marker(end: TransactionEnd, keys: Iterable[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, partition in keys:
        topics.setdefault(topic, []).append(partition)
    return WritableTxnMarker(
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        transaction_result=end.is_commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=numbers) for name, numbers in topics.items()],
        coordinator_epoch=end.coordinator_epoch,
        transaction_version=_BUMPED if end.epoch_is_bumped else 0,
    )
