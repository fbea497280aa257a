"""The mark of a partition's last erasure is written for the leader epoch that is valid, and never lowered by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.ledger.erasure_marks import ErasureMarks
from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError
from lowtide.metadata.image import PartitionImage
from lowtide.metadata.records import PartitionRecord, decode
from lowtide.metadata.store import Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.simulated_loop import run_simulation

TOPIC_ID, OTHER_ID = b"t" * 16, b"o" * 16
EPOCH, REVISION = 7, 31
REFUSED = ErrorCode.NOT_LEADER_OR_FOLLOWER
WAIT_S = 5.0


class MarkedBroker:
    """A broker that leads partitions of one topic: their logs have epoch 3 from offset 0, and epoch 7 from 10 on."""

    def __init__(self, *noted: tuple[int, int]) -> None:
        """`noted`: epoch and end of the mark of each partition in the metadata."""
        states = tuple(
            PartitionImage((1,), (1,), (1,), 1, EPOCH, 4, REVISION, erasures_epoch=epoch, erasures_end=end)
            for epoch, end in noted
        )
        self.topic = SimpleNamespace(topic_id=TOPIC_ID, partitions=states)
        self.led = {number: self._partition() for number in range(len(noted))}
        self.image = SimpleNamespace(topics={"t": self.topic})
        self.metadata = SimpleNamespace(image=self.image, commit=self.commit)
        self.replicas = SimpleNamespace(find=self.find)
        self.random = random.Random(1)
        self.failures: list[Exception] = []
        self.plans: list[ChangePlan] = []

    def _partition(self) -> SimpleNamespace:
        epochs = SimpleNamespace(epoch_at=lambda offset: 3 if offset < 10 else EPOCH)
        log = SimpleNamespace(leader_epochs=epochs)
        return SimpleNamespace(topic_id=TOPIC_ID, is_leader=True, leader_epoch=EPOCH, log=log)

    def find(self, topic: str, number: int) -> Any:
        return self.led.get(number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def commit(self, plan: ChangePlan) -> int:
        if self.failures:
            raise self.failures.pop()
        self.plans.append(plan)
        return 1

    @property
    def written(self) -> list[tuple[bytes, int, int]]:
        """Key, epoch and end of each mark that was written. The writing must depend on the state that was read."""
        found = []
        for plan in self.plans:
            assert not plan.needs_controller
            for step in plan.steps:
                for put, compare in zip(step.operations, step.compares, strict=True):
                    assert isinstance(put, Put)
                    assert (compare.key, compare.argument) == (put.key, REVISION)
                    record = decode(put.key, put.value, PartitionRecord)
                    assert (record.leader_epoch, record.partition_epoch) == (EPOCH, 5)
                    found.append((put.key, record.erasures_epoch, record.erasures_end))
        return found


def note(broker: MarkedBroker, ends: dict[int, int], *, replaces: bool = False) -> tuple[ErrorCode, float]:
    """Returns the answer, and how long it took in seconds."""

    async def main(loop: asyncio.AbstractEventLoop) -> tuple[ErrorCode, float]:
        began_s = loop.time()
        by_key = {TopicPartition("t", number): end for number, end in ends.items()}
        error = await ErasureMarks(broker).note(by_key, began_s + WAIT_S, replaces=replaces)
        return error, loop.time() - began_s

    return run_simulation(main, 1)


@pytest.mark.parametrize(
    ("noted", "end", "replaces", "written"),
    [
        ((-1, 0), 12, False, (EPOCH, 12)),
        ((-1, 0), 11, False, (EPOCH, 11)),
        ((-1, 0), 10, False, (3, 10)),
        ((EPOCH, 12), 12, False, None),
        ((EPOCH, 13), 12, False, None),
        ((EPOCH, 11), 12, False, (EPOCH, 12)),
        ((8, 2), 12, False, None),
        ((3, 40), 12, False, (EPOCH, 12)),
        ((8, 20), 12, True, (EPOCH, 12)),
        ((EPOCH, 12), 12, True, None),
        ((8, 20), 0, True, (-1, 0)),
    ],
)
def test_a_mark_is_written_unless_a_later_one_is_noted(
    noted: tuple[int, int], end: int, replaces: bool, written: tuple[int, int] | None
) -> None:
    """The epoch is that of the batch before the end: a log with another batch there lacks the erasure."""
    broker = MarkedBroker(noted)
    assert note(broker, {0: end}, replaces=replaces) == (ErrorCode.NONE, 0)
    assert broker.written == ([] if written is None else [(keys.partition(TOPIC_ID, 0), *written)])


def test_marks_beside_one_that_is_noted_are_written() -> None:
    broker = MarkedBroker((EPOCH, 12), (-1, 0))
    assert note(broker, {0: 12, 1: 11})[0] == ErrorCode.NONE
    assert broker.written == [(keys.partition(TOPIC_ID, 1), EPOCH, 11)]


def lose_partition(broker: MarkedBroker) -> None:
    del broker.led[0]


def delete_topic(broker: MarkedBroker) -> None:
    broker.image.topics.clear()


def create_topic_again(broker: MarkedBroker) -> None:
    broker.topic.topic_id = OTHER_ID


def follow(broker: MarkedBroker) -> None:
    broker.led[0].is_leader = False


def lead_later(broker: MarkedBroker) -> None:
    broker.led[0].leader_epoch = EPOCH + 1


@pytest.mark.parametrize("change", [lose_partition, delete_topic, create_topic_again, follow, lead_later])
def test_only_the_leader_of_the_epoch_writes_a_mark(change: Callable[[MarkedBroker], None]) -> None:
    """Protects a later leader's mark."""
    broker = MarkedBroker((-1, 0))
    change(broker)
    assert note(broker, {0: 12}) == (REFUSED, 0)
    assert broker.plans == []


def test_a_conflict_is_decided_again() -> None:
    broker = MarkedBroker((-1, 0))
    broker.failures = [ConflictError("changed")] * 3
    error, took_s = note(broker, {0: 12})
    assert (error, len(broker.written)) == (ErrorCode.NONE, 1)
    assert 0 < took_s < WAIT_S


def test_an_erasure_is_not_acknowledged_without_its_mark() -> None:
    """The time is over, or the broker's registration has ended: then it isn't tried again."""
    broker = MarkedBroker((-1, 0))
    broker.failures = [ConflictError("changed")] * 10_000
    error, took_s = note(broker, {0: 12})
    assert error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert WAIT_S <= took_s < WAIT_S + 2
    broker.failures = [ConflictError("changed"), FencedError("fenced")]
    assert note(broker, {0: 12}) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
    assert broker.plans == []
