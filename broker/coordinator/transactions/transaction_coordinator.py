"""The transactions of one broker, as handlers see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.coordinator import ShardedCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.broker.coordinator.transactions.marker_sender import MARKERS_PURPOSE, MarkerSender, PendingMarkers
from lowtide.broker.coordinator.transactions.marker_writer import MarkerWriter, TransactionEnd
from lowtide.broker.coordinator.transactions.next_transaction import Identity
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_settings import transaction_settings
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.pending import Pending
from lowtide.metadata.errors import SessionError
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.store import MetadataStoreError
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.transaction_records import decode_transaction
from lowtide.protocol.types import ProducerId, TopicPartition

R = TypeVar("R")

VERIFICATION_PURPOSE: Final = "verification"
"""The purpose of connections to coordinators that verify transactions."""

TRANSACTION_TOPIC: Final = "__transaction_state"

_CONFIGS: Final = (
    ("cleanup.policy", "compact"),
    ("compression.type", "uncompressed"),
    ("unclean.leader.election.enable", "false"),
)
"""Source: Kafka's `TransactionStateManager.transactionTopicConfigs`."""


class TransactionCoordinator(ShardedCoordinator[Transactions]):
    """The transactions of one broker."""

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
        self.settings = transaction_settings(broker.config.values)
        self.ids = ProducerIds(broker)
        self.writer = MarkerWriter(broker.replicas, broker.clock, groups)
        self.peers, self.loop = peers, loop
        self._sender = MarkerSender(broker, self.writer, peers, loop)
        coordinated = CoordinatedTopic(
            name=TRANSACTION_TOPIC,
            configs=_CONFIGS,
            factor_key="transaction.state.log.replication.factor",
            make_state=lambda: Transactions(self.settings, self),
            decode=decode_transaction,
        )
        super().__init__(broker, administrator, loop, self.settings, coordinated, is_alone=is_alone)

    # ------------------------------------------------------------------ what the state asks for
    def take_producer_id(self) -> ProducerId | None:
        """Returns an unused producer id; None if none is available."""
        return self.ids.take_now()

    def send_markers(self, transaction: Transaction) -> None:
        """Sends markers to the partitions of a transaction, and then completes it."""
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
        self._sender.send(
            PendingMarkers(
                end,
                set(transaction.partitions),
                partial(self._is_ours, shard),
                partial(self._on_sent, shard, transaction),
            )
        )

    def _is_ours(self, shard: Shard[Transactions]) -> bool:
        return not shard.unloaded and shard.leads

    def _on_sent(self, shard: Shard[Transactions], transaction: Transaction) -> None:
        if self._is_ours(shard):
            identity = (transaction.producer_id, transaction.producer_epoch)
            self.carry_out(shard, partial(shard.state.on_all_marked, transaction.transactional_id, identity))

    # ------------------------------------------------------------------ requests
    def add_partitions(
        self,
        shard: Shard[Transactions],
        transactional_id: str,
        identity: Identity,
        partitions: Iterable[TopicPartition],
        client_version: int,
        answer: Callable[[ErrorCode], R],
    ) -> Pending[R]:
        """Adds partitions to a transaction (`Transactions.add_partitions`). `answer` makes a response from an error."""

        def decide(reply: Pending[R], effects: Effects) -> None:
            def done(error: ErrorCode, later: Effects) -> None:
                later.answer(reply, answer(error))

            shard.state.add_partitions(transactional_id, identity, partitions, client_version, effects, done)

        return self.decide(shard, decide)

    def may_begin(self, shard: Shard[Transactions], transactional_id: str) -> bool:
        """Returns whether an id is known, or may be added: `lowtide.transactional.ids.max`."""
        if transactional_id in shard.state.transactions:
            return True
        return sum(each.state.transactions.weight for each in self._runtime.shards.values()) < self.settings.ids_max

    # ------------------------------------------------------------------ what happens elsewhere
    def on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """Disconnects from brokers that are gone, so that what waits for them is sent to their successors."""
        self.peers.forget_ended(old, new, delta.brokers_changed, (MARKERS_PURPOSE, VERIFICATION_PURPOSE))

    def close(self) -> None:
        """Stops sending markers, and answers NOT_COORDINATOR to all waiting requests: the broker stops."""
        self._sender.close()
        super().close()


class ProducerIds:
    """Producer ids for this broker to hand out, from blocks of the metadata store. No id is handed out twice."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._left: range = range(0)
        self._is_fetching = False

    async def take(self) -> ProducerId:
        """Returns an unused id. Errors: those of the metadata store."""
        await self.reserve()
        producer_id = self.take_now()
        assert producer_id is not None
        return producer_id

    async def reserve(self) -> None:
        """Gets a block of ids if none is left. Errors: those of the metadata store."""
        while not self._left:
            self._left = await self._broker.metadata.allocate_producer_ids()

    def take_now(self) -> ProducerId | None:
        """Returns an unused id; None if none is left, and then gets a block."""
        if not self._left:
            if not self._is_fetching:
                self._is_fetching = True
                self._broker.tasks.spawn(self._fetch(), name="fetch producer ids")
            return None
        producer_id = self._left[0]
        self._left = self._left[1:]
        return producer_id

    async def _fetch(self) -> None:
        try:
            await self.reserve()
        except (MetadataStoreError, SessionError) as error:
            self._broker.log.warning("producer id allocation failed", error=str(error))
        finally:
            self._is_fetching = False
