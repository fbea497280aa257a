"""The transactions of one broker over partitions in memory; tests step its loop, tasks and worker."""

from __future__ import annotations

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC, TransactionCoordinator
from lowtide.broker.coordinator.transactions.transaction_shard import Transactions
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.markers import Marker
from lowtide.storage.log.validator import ValidatedBatch

HERE, THERE = 1, 2
"""Brokers: this one, and another one."""

NAME, TIMEOUT_MS = "transfers", 10_000
DATA = TopicPartition("t", 0)
NONE = ErrorCode.NONE


def topic(name: str, *leaders: int) -> TopicImage:
    partitions = tuple(PartitionImage((leader,), (leader,), (1,), leader, 0, 0, 1) for leader in leaders)
    return TopicImage(name, name.encode()[:1] * 16, partitions, {}, 1)


class World:
    """A coordinator whose topic has these leaders, and a partition of data that is led here."""

    def __init__(self, *leaders: int, is_alone: bool = False, **settings: str) -> None:
        """`settings` by Kafka's names, with underscores."""
        self.soon: list[tuple[Any, tuple[Any, ...]]] = []
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.work: list[Any] = []
        self.appended: list[tuple[TopicPartition, ValidatedBatch]] = []
        self.now_ms = 0
        topics = {TRANSACTION_TOPIC: topic(TRANSACTION_TOPIC, *leaders)} if leaders else {}
        brokers = {each: BrokerImage(each, 1, ()) for each in (HERE, THERE)}
        image = MetadataImage(brokers=brokers, topics={"t": topic("t", HERE)} | topics)
        self.metadata = SimpleNamespace(broker_id=HERE, image=image, is_controller=True)
        keys = [DATA, *(TopicPartition(TRANSACTION_TOPIC, number) for number, leader in enumerate(leaders) if leader == HERE)]
        self.partitions = {key: self.led(key) for key in keys}
        clock = SimpleNamespace(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: 1_000_000 + self.now_ms)
        self.broker: Any = SimpleNamespace(
            config=load_config(settings={name.replace("_", "."): value for name, value in settings.items()}),
            replicas=self,
            clock=clock,
            metadata=self.metadata,
            worker=SimpleNamespace(submit=lambda call, done: self.work.append((call, done))),
            log=SimpleNamespace(warning=lambda *_args, **_values: None, info=lambda *_args, **_values: None),
            tasks=SimpleNamespace(spawn=lambda task, name: self.tasks.append(task)),
        )
        self.loop: Any = SimpleNamespace(
            call_soon=lambda function, *given: self.soon.append((function, given)),
            call_later=self.call_later,
        )
        self.administrator: Any = SimpleNamespace(forwarder=None)
        groups: Any = SimpleNamespace(is_kept_in=lambda _topic: False)
        self.coordinator = TransactionCoordinator(self.broker, self.administrator, self.peers(), groups, self.loop, is_alone=is_alone)

    def peers(self) -> Any:
        """The connections to other brokers: there are none."""
        return None

    def call_later(self, delay_s: float, function: Any, *given: Any) -> Any:
        self.later.append((delay_s, function, given))
        return SimpleNamespace(cancel=lambda: None)

    def led(self, key: TopicPartition, *, end_offset: int = 0) -> Any:
        """A partition that is led here, without followers."""
        log = SimpleNamespace(
            log_start_offset=0, log_end_offset=end_offset, high_watermark=end_offset, offline=False, flush_is_due=False,
            config=SimpleNamespace(max_message_bytes=1 << 20), read=lambda *_args, **_values: SimpleNamespace(slice="unread"),
        )  # fmt: skip
        return SimpleNamespace(topic_partition=key, log=log, leader_epoch=3, is_leader=True, leadership=None, has_enough_in_sync=True)

    # ------------------------------------------------------------------ the partitions of this broker
    def find(self, name: str, number: int) -> Any:
        return self.partitions.get(TopicPartition(name, number), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def append_committed(self, partition: Any, batch: ValidatedBatch, _now_ms: int) -> int:
        self.appended.append((partition.topic_partition, batch))
        partition.log.log_end_offset += batch.record_count
        partition.log.high_watermark = partition.log.log_end_offset
        return int(partition.log.log_end_offset) - batch.record_count

    @property
    def markers(self) -> list[Marker]:
        return [batch for _, batch in self.appended if isinstance(batch, Marker)]

    # ------------------------------------------------------------------ what is done with it
    def without_topic(self) -> None:
        """The coordinators' topic was deleted, though its partitions are still here."""
        self.metadata.image = msgspec.structs.replace(self.metadata.image, topics={"t": topic("t", HERE)})

    def shard(self, name: str = NAME) -> Shard[Transactions]:
        found = self.coordinator.find(name)
        assert isinstance(found, Shard)
        return found

    def shards(self) -> list[Shard[Transactions]]:
        """All that is coordinated here."""
        found = self.coordinator.loaded()
        assert not isinstance(found, ErrorCode)
        return found

    def begin(self, *, partitions: tuple[TopicPartition, ...] = (DATA,), client_version: int = 2) -> Transaction:
        """A producer, with an open transaction where there are partitions."""
        shard = self.shard()
        self.coordinator.ids._left = range(100, 200)
        self.coordinator.decide(
            shard, lambda _reply, effects: shard.state.init_producer_id(NAME, TIMEOUT_MS, None, effects, lambda *_: None)
        )
        known = shard.state.transactions[NAME]
        if partitions:
            identity = known.producer_id, known.producer_epoch
            assert self.coordinator.at_once.add(shard, NAME, identity, frozenset(partitions), client_version) == NONE
        return shard.state.transactions[NAME]

    def end(self, *, is_commit: bool = True, client_version: int = 2) -> Transaction:
        """End the open transaction: its markers are on their way."""
        shard = self.shard()
        known = shard.state.transactions[NAME]
        identity = known.producer_id, known.producer_epoch
        answer = self.coordinator.at_once.end(shard, NAME, identity, is_commit=is_commit, client_version=client_version)
        assert answer is not None
        assert answer[0] == NONE
        return shard.state.transactions[NAME]

    def run(self) -> None:
        """All that is due now. Tasks don't wait: they get answers at once."""
        while self.soon or self.tasks:
            if self.soon:
                function, given = self.soon.pop(0)
                function(*given)
                continue
            try:
                self.tasks.pop(0).send(None)
            except StopIteration:
                continue
            message = "a task waits"
            raise AssertionError(message)
