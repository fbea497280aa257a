"""The transactions of one broker, as handlers see them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.broker.coordinator.transactions.at_once import AtOnce
from lowtide.broker.coordinator.transactions.marker_sender import MARKERS_PURPOSE, MarkerSender, Telling
from lowtide.broker.coordinator.transactions.marker_writer import MarkerWriter, TransactionEnd
from lowtide.broker.coordinator.transactions.producer_ids import ProducerIds
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_settings import TransactionSettings, transaction_settings
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.pending import Pending
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.transaction_records import decode_transaction
from lowtide.protocol.types import ProducerId

VERIFICATION_PURPOSE: Final = "verification"
"""Of connections to coordinators that are asked about transactions."""

TRANSACTION_TOPIC: Final = "__transaction_state"

R = TypeVar("R")


class TransactionCoordinator:
    """Finds a transactional id's state, carries out what is decided about it, and follows leaderships."""

    def __init__(
        self,
        broker: BrokerContext,
        administrator: TopicAdministrator,
        peers: PeerClients,
        groups: GroupCoordinator,
        loop: Any,
        *,
        is_alone: bool,
    ) -> None:
        """`is_alone`: there may never be more brokers than there are now."""
        config = broker.config
        self.settings = transaction_settings(config.values)
        given = not is_alone or "transaction.state.log.replication.factor" in config.given
        self.topic = OffsetsTopic(
            broker,
            administrator,
            self.settings,
            factor_is_given=given,
            name=TRANSACTION_TOPIC,
            configs=partial(_configs, self.settings),
        )
        self.broker = broker
        self.ids = ProducerIds(broker)
        self.writer = MarkerWriter(broker.replicas, broker.clock, groups)
        self.peers, self.loop = peers, loop
        self._sender = MarkerSender(broker, self.writer, peers, loop)
        self._runtime: CoordinatorRuntime[Transactions] = CoordinatorRuntime(
            CoordinatedTopic(
                name=TRANSACTION_TOPIC, make_state=lambda: Transactions(self.settings, self), decode=decode_transaction
            ),
            replicas=broker.replicas,
            clock=broker.clock,
            loop=loop,
            worker=broker.worker,
            log=broker.log,
        )
        self.at_once = AtOnce(self._runtime, broker.clock)

    # ------------------------------------------------------------------ what the state asks for
    def take_producer_id(self) -> ProducerId | None:
        """An unused id, if one is at hand."""
        return self.ids.take_now()

    def tell(self, transaction: Transaction) -> None:
        """Tell the partitions of a transaction how it ended, and then complete it."""
        shard = self._runtime.shards.get(self.topic.partition_of(transaction.transactional_id))
        if shard is None:
            return
        end = TransactionEnd(
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.state is TransactionState.PREPARE_COMMIT,
            shard.led_since,
            transaction.bumps_epochs,
        )
        self._sender.tell(
            Telling(
                end,
                set(transaction.partitions),
                partial(self._is_ours, shard),
                partial(self._on_told, shard, transaction),
            )
        )

    def _is_ours(self, shard: Shard[Transactions]) -> bool:
        return not shard.unloaded and shard.leads

    def _on_told(self, shard: Shard[Transactions], transaction: Transaction) -> None:
        if not self._is_ours(shard):
            return
        state = shard.state.plan_completion(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        )
        if state is not None and not self.at_once.complete(shard, state):
            effects = self._runtime.effects()
            shard.state.complete(state, effects)
            self._runtime.carry_out(shard, effects)

    # ------------------------------------------------------------------ requests
    def find(self, transactional_id: str) -> Shard[Transactions] | ErrorCode:
        """The state that a transactional id belongs to. Errors: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        return self._runtime.find(self.topic.partition_of(transactional_id))

    def loaded(self) -> list[Shard[Transactions]] | ErrorCode:
        """All that is coordinated here. Errors: COORDINATOR_LOAD_IN_PROGRESS while any of it isn't known yet."""
        self._runtime.follow(self.topic.partition_count if self.topic.exists else 0)
        shards = list(self._runtime.shards.values())
        return shards if all(shard.loaded for shard in shards) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def may_begin(self, shard: Shard[Transactions], transactional_id: str) -> bool:
        """Whether an id is known, or may be added to those that are: `lowtide.transactional.ids.max`."""
        if transactional_id in shard.state.transactions:
            return True
        return sum(each.state.count for each in self._runtime.shards.values()) < self.settings.ids_max

    def decide(self, shard: Shard[Transactions], decision: Callable[[Pending[R], Effects], None]) -> Pending[R]:
        """Make a decision and carry it out. The answer is there at once, if nothing has to be waited for."""
        pending: Pending[R] = Pending()
        effects = self._runtime.effects()
        decision(pending, effects)
        self._runtime.carry_out(shard, effects)
        return pending

    # ------------------------------------------------------------------ what happens elsewhere
    def on_tick(self) -> None:
        """Follow who leads. On the order of once a second."""
        if self.topic.exists or self._runtime.shards:
            self._runtime.follow(self.topic.partition_count if self.topic.exists else 0)

    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """Who waits for a broker that is gone asks the one that has followed it."""
        self.peers.forget_ended(old, new, delta.brokers_changed, (MARKERS_PURPOSE, VERIFICATION_PURPOSE))

    def close(self) -> None:
        """Send waiting clients elsewhere: the broker stops."""
        self._sender.close()
        self._runtime.close()


def _configs(settings: TransactionSettings, replication_factor: int) -> tuple[tuple[str, str], ...]:
    """The configuration of the topic. Source: Kafka's `TransactionStateManager.transactionTopicConfigs`."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "uncompressed"),
        ("unclean.leader.election.enable", "false"),
        ("min.insync.replicas", str(min(settings.topic_minimum_in_sync, replication_factor))),
        ("segment.bytes", str(settings.topic_segment_bytes)),
    )
