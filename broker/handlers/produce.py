"""Produce: v3-v13, advertised from v0.

Behaviour: validates the one batch of each partition, appends it and answers its base offset. With acks=0 nothing is
answered; an error then closes the connection. A batch that takes long to check (large, many records, much behind its
compression) is checked by the worker, and what is left of a request of many batches that takes long together is
appended in slices; the connection waits meanwhile, and others are served. Of a partition named twice the last batch
counts; a topic without partitions is not answered. acks=1 is answered when the batch is in the log, acks=all when all
in-sync replicas have it, both when it is flushed if that is due (`flush.messages`); the only replica of a partition is
all of them.

Version notes: v0-v2 are advertised because old librdkafka looks for them before it compresses (KAFKA-18659), and are
refused. zstd needs v7. v8 names records that were refused. v9 is flexible. v10 tells the current leader (KIP-951). v11
knows TRANSACTION_ABORTABLE. v12 adds partitions to a transaction by itself (KIP-890). v13 has topic ids (KIP-516).

Errors: those of the validator and of the producer state; UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
NOT_LEADER_OR_FOLLOWER, INVALID_REQUIRED_ACKS, KAFKA_STORAGE_ERROR; with acks=all NOT_ENOUGH_REPLICAS before the append,
and after it NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT, for records that may stay or not;
INVALID_TOPIC_EXCEPTION for the topics of coordinators. Of transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a
whole request without a transactional id, those of
`told_to_producer`, and INVALID_TXN_STATE when a transaction ended meanwhile.

KIPs: 98, 467, 516, 890, 951.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_verifier import TransactionVerifier
from lowtide.broker.guards.guard import OwnGuard
from lowtide.broker.guards.producing import guarded_produce
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.produce.joint_produce import joint_produce
from lowtide.broker.partitions.produce.produce_attempt import CurrentLeaders, ProduceAttempt, ProduceParts
from lowtide.broker.partitions.produce.produce_rows import failed, has_transactional, once_each
from lowtide.broker.partitions.produce.slow_batches import KeptBytes
from lowtide.broker.partitions.produce.slow_produce import SlowProduce
from lowtide.broker.pending import Pending
from lowtide.broker.quotas.metered_handlers import produced_bytes
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import ProduceRequest, ProduceResponse, TopicProduceData, TopicProduceResponse

REQUEST_MS = 5
"""How long one request is worked on at a time; what is left then is done in slices."""

CUT: Final = Cut(
    levels=(("topic_data", "responses"), ("partition_data", "partition_responses")),
    names=("name", "topic_id", "index"),
    changes=True,
)


class ProduceHandler:
    """Produce over a broker's state. One for each broker; it keeps nothing of a request."""

    def __init__(self, broker: BrokerContext, verifier: TransactionVerifier) -> None:
        self._replicas = broker.replicas
        self._clock = broker.clock
        self.parts = ProduceParts(
            replicas=broker.replicas,
            clock=broker.clock,
            verifier=verifier,
            leaders=CurrentLeaders(broker.replicas),
            lane=broker.batch_lane,
            decompressed_bytes_max=broker.config.request_decompressed_max_bytes,
            kept=KeptBytes(broker.config.queued_max_request_bytes),
            log=broker.log,
        )

    def handle(
        self, request: ProduceRequest, context: RequestContext
    ) -> ProduceResponse | Pending[ProduceResponse] | None:
        """Append every batch of the request; answer, or promise to when a flush is due."""
        topics = request.topic_data
        attempt = ProduceAttempt(
            self.parts, self._replicas, request, context, request.acks, context.api_version, self._clock.wall_ms()
        )
        if len(topics) != 1 or len(topics[0].partition_data) != 1:
            topics = once_each(topics)
            if request.transactional_id is None and has_transactional(topics):
                return attempt.answer(_refused(topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
            attempt.ends_ms = self._clock.monotonic_ms() + REQUEST_MS
        responses: list[TopicProduceResponse] = []
        try:
            for topic in topics:  # A loop, for a comprehension costs a call.
                responses.append(attempt.append_topic(topic))  # noqa: PERF401
        except BaseException:
            attempt.give_back()
            raise
        if attempt.rest or attempt.slow:
            return SlowProduce(attempt, responses).start()
        return attempt.answer(responses)


def handler(broker: BrokerContext, transactions: TransactionCoordinator) -> HandlerSpec:
    """The handler over a broker's state."""
    verifier = TransactionVerifier(transactions, transactions.peers, transactions.loop)
    produce = ProduceHandler(broker, verifier)
    return HandlerSpec(
        key=ApiKey.PRODUCE,
        guard=OwnGuard(guarded_produce),
        handle=produce.handle,
        advertised_minimum=0,
        cut=CUT,
        joint=joint_produce(produce.parts),
        counts_errors=True,
        request_bytes=produced_bytes,
    )


def _refused(topics: list[TopicProduceData], error: ErrorCode) -> list[TopicProduceResponse]:
    """Nothing is written of a request that has a transactional batch, and no transactional id. Source: `KafkaApis`."""
    return [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[failed(row.index, error) for row in topic.partition_data],
        )
        for topic in topics
    ]
