"""A broker whose registration may have ended serves no request, and resumes no leadership of an earlier one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from lowtide.broker.lifecycle.fencing import UP_LOOK_MS, RegistrationFence
from lowtide.broker.partitions.produce.delayed_produce import DelayedProduce, ProduceWait
from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import load_image
from lowtide.metadata.records import PartitionRecord, TopicRecord, encode
from lowtide.metadata.store import KeyValue
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from lowtide.protocol.types import TopicPartition, topic_id_text
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock

BROKER = 1
TOPIC_ID = bytes(range(16))


def image(revision: int, *leader_epochs: tuple[int, int]) -> MetadataImage:
    """One topic, with a leader and the broker epoch of its membership for each partition."""
    pairs = [
        KeyValue(keys.topic("t"), encode(TopicRecord(topic_id_text(TOPIC_ID), len(leader_epochs))), 1, 1),
        KeyValue(keys.topic_id(TOPIC_ID), b"t", 1, 1),
    ]
    for number, (leader, epoch) in enumerate(leader_epochs):
        record = PartitionRecord((leader,), (leader,), (epoch,), leader, 0, 0)
        pairs.append(KeyValue(keys.partition(TOPIC_ID, number), encode(record), 1, 1))
    return load_image(sorted(pairs, key=lambda pair: pair.key), revision, prefix=b"")


class Session:
    """A session whose state and clock a test sets."""

    def __init__(self, **state: Any) -> None:
        self.broker_id = BROKER
        self.broker_epoch = 0
        self.fenced_from_ms = 0
        self.image = MetadataImage()
        self.now_ms = 0
        self.listener: Any = None
        for name, value in state.items():
            setattr(self, name, value)

    def monotonic_ms(self) -> int:
        return self.now_ms

    @property
    def registration(self) -> Any:
        return self

    @property
    def is_fenced(self) -> bool:
        return self.broker_epoch == 0 or self.monotonic_ms() >= self.fenced_from_ms

    def on_change(self, listener: Any) -> None:
        self.listener = listener

    def register(self, epoch: int) -> None:
        self.broker_epoch = epoch
        self.listener()


def fence_of(session: Any) -> RegistrationFence:
    return RegistrationFence(session, session)


def test_a_broker_acts_under_a_registration_that_its_leaders_were_elected_under() -> None:
    """First no registration, then one that the image lacks, then one without new elections, then a complete one."""
    state = Session()
    fence = fence_of(state)
    assert fence.is_up()
    state.broker_epoch, state.fenced_from_ms = 7, 100
    state.image = image(6, (BROKER, 7))
    assert fence.is_up()
    state.image = image(8, (BROKER, 7), (BROKER, 3), (2, 3))
    assert fence.is_up()
    state.image = image(9, (BROKER, 7), (BROKER, 7), (2, 3))
    assert not fence.is_up()


def test_the_fence_is_up_from_the_session_s_deadline() -> None:
    """Each response checks it to the millisecond. A renewal moves the deadline; a lost registration ends it."""
    state = Session(broker_epoch=7, fenced_from_ms=100, image=image(9, (BROKER, 7)))
    fence = fence_of(state)
    state.now_ms = 99
    assert not fence.is_up()
    state.now_ms = 100
    assert fence.is_up()
    state.fenced_from_ms = 150
    assert not fence.is_up()
    state.broker_epoch = 0
    assert fence.is_up(), "although 150 is not reached, and no listener was called"
    state.register(0)
    state.register(10)
    assert fence.is_up(), "its partitions were elected under the previous registration"
    state.image = image(11, (BROKER, 10))
    assert not fence.is_up()


def test_waiting_requests_end_when_the_fence_changes() -> None:
    """When the lease may have ended, at the loss of the registration, and when the broker may act again."""

    async def scenario(loop: SimulatedLoop) -> None:
        clock = SimulatedClock(loop)
        state = Session(broker_epoch=7, fenced_from_ms=clock.monotonic_ms() + 1000, image=image(9, (BROKER, 7)))
        state.monotonic_ms = clock.monotonic_ms
        turned: list[tuple[int, bool]] = []
        begun = clock.monotonic_ms()
        fence = RegistrationFence(state, clock)
        fence.watch(loop, lambda up: turned.append((clock.monotonic_ms() - begun, up)))
        await asyncio.sleep(0.9)
        state.fenced_from_ms = begun + 2000
        await asyncio.sleep(2.1)
        state.fenced_from_ms = begun + 10_000
        await asyncio.sleep(0.5)
        state.register(0)
        await asyncio.sleep(0.5)
        state.image = image(21, (BROKER, 20))
        state.register(20)
        fence.close()
        assert [up for _, up in turned] == [False, True, False, True, False]
        told = [at for at, _ in turned]
        assert told[0] == 0
        assert 2000 <= told[1] <= 2010
        assert 3000 <= told[2] <= 3000 + UP_LOOK_MS + 10
        assert told[3] == 3500
        assert told[4] == 4000

    run_simulation(scenario, seed=1)


def test_what_is_flushed_behind_a_fence_is_not_acknowledged() -> None:
    """The flush may end at any time, also after the registration ended."""
    log = SimpleNamespace(recovery_point=0, log_end_offset=6, flush_is_due=True)
    partition: Any = SimpleNamespace(topic_partition=TopicPartition("t", 0), log=log)
    fenced = False

    def find(_topic: str, _partition: int) -> Any:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if fenced else partition

    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0)
    replicas: Any = SimpleNamespace(
        is_fenced=lambda: fenced,
        find=find,
        waiting=SimpleNamespace(flushes=SimpleNamespace(watch=lambda _request: True)),
    )
    for up in (False, True):
        fenced, partition.log.recovery_point = False, 0
        answer = PartitionProduceResponse(
            index=0, error_code=ErrorCode.NONE, base_offset=5, log_append_time_ms=-1, log_start_offset=0
        )
        wait = ProduceWait(partition, 3, 6, answer, flushes=True, commits=False)
        request = DelayedProduce(replicas, clock, ProduceResponse(responses=[]), [wait], 1000)
        assert request.start() is request.pending
        fenced, partition.log.recovery_point = up, 6
        assert request.try_complete()
        assert answer.error_code == (ErrorCode.NOT_LEADER_OR_FOLLOWER if up else ErrorCode.NONE)
