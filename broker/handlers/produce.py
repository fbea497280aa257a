"""Produce: v3-v13, advertised from v0.

Behaviour: validates the one batch of each partition, appends it, and answers its base offset. acks=1 is answered when
the batch is in the log, acks=all when all in-sync replicas have it, both after the flush if one is due
(`flush.messages`). With acks=0 there is no answer, and an error closes the connection. If a partition is listed twice,
the last batch wins; a topic without partitions is not answered. The worker validates batches that take long (large,
many records, much behind their compression). A request with many batches that takes long continues in slices. The
connection waits meanwhile; others are served.

Version notes: v0-v2 are advertised, because old librdkafka compresses only if they are (KAFKA-18659), and are refused.
zstd needs v7. v8 names refused records. v9 is flexible. v10 returns the current leader (KIP-951). v11 knows
TRANSACTION_ABORTABLE. v12 adds partitions to the transaction (KIP-890). v13 has topic ids (KIP-516).

Errors: those of the validator and of the producer state; UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
NOT_LEADER_OR_FOLLOWER, INVALID_REQUIRED_ACKS, KAFKA_STORAGE_ERROR; with acks=all NOT_ENOUGH_REPLICAS before the append,
and after it NOT_ENOUGH_REPLICAS_AFTER_APPEND and REQUEST_TIMED_OUT, whose records may be committed later or not;
INVALID_TOPIC_EXCEPTION for the topics of coordinators. For transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a
whole request without a transactional id, those of `error_for_producer`, and INVALID_TXN_STATE when a transaction ended
meanwhile.

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
from lowtide.broker.partitions.produce.delayed_produce import CurrentLeaders, ProduceParts
from lowtide.broker.partitions.produce.joint_produce import joint_produce
from lowtide.broker.partitions.produce.produce_attempt import ProduceHandler
from lowtide.broker.partitions.produce.slow_batches import KeptBytes
from lowtide.broker.partitions.produce.slow_produce import SlowProduce
from lowtide.broker.quotas.metered_handlers import produced_bytes
from lowtide.protocol.api_keys import ApiKey

CUT: Final = Cut(
    levels=(("topic_data", "responses"), ("partition_data", "partition_responses")),
    names=("name", "topic_id", "index"),
    changes=True,
)


def handler(broker: BrokerContext, transactions: TransactionCoordinator) -> HandlerSpec:
    """Returns the handler."""
    parts = ProduceParts(
        replicas=broker.replicas,
        clock=broker.clock,
        verifier=TransactionVerifier(transactions, transactions.peers, transactions.loop),
        leaders=CurrentLeaders(broker.replicas),
        lane=broker.batch_lane,
        decompressed_bytes_max=broker.config.request_decompressed_max_bytes,
        kept=KeptBytes(broker.config.queued_max_request_bytes),
        log=broker.log,
    )
    produce = ProduceHandler(parts, lambda attempt, responses: SlowProduce(attempt, responses).start())
    return HandlerSpec(
        key=ApiKey.PRODUCE,
        guard=OwnGuard(guarded_produce),
        handle=produce.handle,
        advertised_minimum=0,
        cut=CUT,
        joint=joint_produce(parts),
        counts_errors=True,
        request_bytes=produced_bytes,
    )
