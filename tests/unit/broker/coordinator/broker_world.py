"""What a coordinator needs of its broker, in memory: partitions, and a loop, tasks and a worker that a test steps."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.authorizer.authorizer import ALLOW_ALL
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.turns import Turns
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.tasks import TaskRegistry
from lowtide.storage.log.log_values import AppendedBatch
from lowtide.storage.log.markers import Marker
from lowtide.storage.log.validation.validator import ValidatedBatch

HERE, THERE = 1, 2
"""Brokers: this one, and another one."""

WALL_MS = 1_000_000
DATA = TopicPartition("t", 0)
NONE = ErrorCode.NONE


def topic(name: str, *leaders: int) -> TopicImage:
    """A topic whose partitions have these leaders."""
    partitions = tuple(PartitionImage((leader,), (leader,), (1,), leader, 0, 0, 1) for leader in leaders)
    return TopicImage(name, name.strip("_").encode()[:1] * 16, partitions, {}, 1)


class BrokerWorld:
    """A coordinators' topic whose partitions have these leaders, and a partition of data that is led here."""

    def __init__(self, name: str, *leaders: int, **settings: str) -> None:
        """`settings` by Kafka's names, with underscores."""
        self.soon: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self.later: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.work: list[Any] = []
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        """The log: level, event, values."""
        self.appended: list[tuple[TopicPartition, ValidatedBatch]] = []
        self.refuses: ErrorCode | None = None
        """What partitions answer to an append."""
        self.waiting: list[tuple[Any, int, Any]] = []
        """Who waits until a partition is committed up to an offset."""
        self.now_ms = 0
        brokers = {each: BrokerImage(each, 1, ()) for each in (HERE, THERE)}
        self.metadata = SimpleNamespace(broker_id=HERE, image=MetadataImage(brokers=brokers), is_controller=True)
        self.set_topics(topic("t", HERE), *([topic(name, *leaders)] if leaders else []))
        keys = [DATA, *(TopicPartition(name, number) for number, leader in enumerate(leaders) if leader == HERE)]
        self.partitions = {key: self.led(key) for key in keys}
        self.loop: Any = SimpleNamespace(
            call_soon=lambda function, *given: self.soon.append((function, given)), call_later=self.call_later
        )
        clock: Any = SimpleNamespace(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: WALL_MS + self.now_ms)
        turns = Turns(self.loop, clock)
        self.turns = turns
        self.broker: Any = SimpleNamespace(
            authorizer=ALLOW_ALL,
            config=load_config(settings={key.replace("_", "."): value for key, value in settings.items()}),
            replicas=self,
            clock=clock,
            random=random.Random(1),
            turns=turns,
            metadata=self.metadata,
            worker=SimpleNamespace(submit=lambda call, done: self.work.append((call, done))),
            log=SimpleNamespace(
                **{
                    level: lambda event, *, level=level, **values: self.lines.append((level, event, values))
                    for level in ("info", "warning", "error")
                }
            ),
            tasks=SimpleNamespace(spawn=lambda task, name: self.tasks.append(task)),
        )
        self.administrator: Any = SimpleNamespace(forwarder=None)

    def call_later(self, delay_s: float, function: Any, *given: Any) -> Any:
        self.later.append((delay_s, function, given))
        return SimpleNamespace(cancel=lambda: None)

    def led(self, key: TopicPartition, *, end_offset: int = 0) -> Any:
        """A partition that is led here, without followers until a test gives it a `leadership`."""
        log = SimpleNamespace(
            log_start_offset=0, log_end_offset=end_offset, high_watermark=end_offset, offline=False, flush_is_due=False,
            config=SimpleNamespace(max_message_bytes=1 << 20),
            read=lambda *_args, **_values: SimpleNamespace(slice="unread"),
        )  # fmt: skip
        return SimpleNamespace(
            topic_partition=key, log=log, leader_epoch=3, led_since=3, is_leader=True, leadership=None,
            has_enough_in_sync=True,
        )  # fmt: skip

    def set_topics(self, *topics: TopicImage) -> None:
        """Sets all topics. Partitions of others may still be here."""
        named = {each.name: each for each in topics}
        ids = {each.topic_id: each.name for each in topics}
        self.metadata.image = msgspec.structs.replace(self.metadata.image, topics=named, topic_names=ids)

    # ------------------------------------------------------------------ the partitions of this broker
    def find(self, name: str, number: int) -> Any:
        return self.partitions.get(TopicPartition(name, number), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def append(self, partition: Any, batch: ValidatedBatch, _now_ms: int) -> AppendedBatch | ErrorCode:
        if self.refuses is not None:
            return self.refuses
        self.appended.append((partition.topic_partition, batch))
        offset: int = partition.log.log_end_offset
        partition.log.log_end_offset = offset + batch.record_count
        if partition.leadership is None:
            partition.log.high_watermark = partition.log.log_end_offset
        return AppendedBatch(offset, offset + batch.record_count - 1, -1)

    def when_committed(self, partition: Any, offset: int, callback: Any, **_values: Any) -> None:
        self.waiting.append((partition, offset, callback))

    def commit(self, partition: Any, end_offset: int | None = None, error: ErrorCode = NONE) -> None:
        """Commits up to an offset, or fails what waits for a reason."""
        log = partition.log
        if error == NONE:
            log.high_watermark = log.log_end_offset if end_offset is None else end_offset
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if each[0] is partition and (error != NONE or each[1] <= log.high_watermark):
                each[2](error)
            else:
                self.waiting.append(each)

    @property
    def markers(self) -> list[Marker]:
        return [batch for _, batch in self.appended if isinstance(batch, Marker)]

    def make_topic(self, internal_topic: Any) -> tuple[Any, dict[str, str]]:
        """Lets a coordinator create its topic with this broker alone; returns the request and the configs."""
        self.metadata.image = MetadataImage(brokers={HERE: BrokerImage(HERE, 1, ())})
        made: list[tuple[Any, dict[str, str]]] = []

        async def create(wanted: Any, configs: Any, _limit_ms: int) -> None:
            made.append((wanted, dict(configs)))

        async def make() -> None:
            self.broker.tasks = TaskRegistry(lambda _name, error: pytest.fail(str(error)))
            await internal_topic.create()

        self.administrator.create = create
        asyncio.run(make())
        (one,) = made
        return one

    # ------------------------------------------------------------------ what happens next
    def run(self) -> None:
        """Runs what is due now. Tasks do not wait: they get answers at once."""
        while self.soon or self.tasks:
            if self.soon:
                function, given = self.soon.popleft()
                function(*given)
                continue
            try:
                self.tasks.pop(0).send(None)
            except StopIteration:
                continue
            message = "a task waits"
            raise AssertionError(message)
