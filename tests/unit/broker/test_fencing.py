"""A broker that may have been given up acts for nobody, and leads again only what was elected under its new registration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.delayed.produce import DelayedProduce, FlushWait
from lowtide.broker.fencing import Fence
from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import PartitionRecord, TopicRecord, encode
from lowtide.metadata.store import KeyValue
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.produce import PartitionProduceResponse, ProduceResponse
from lowtide.protocol.types import TopicPartition, topic_id_text

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
    return MetadataImage.load(sorted(pairs, key=lambda pair: pair.key), revision, prefix=b"")


def session(**state: Any) -> Any:
    return SimpleNamespace(**{"broker_id": BROKER, "broker_epoch": 0, "is_fenced": True, "image": MetadataImage(), **state})


def test_a_broker_acts_under_a_registration_that_its_leaders_were_elected_under() -> None:
    """First none, then one that the image doesn't show, then one whose partitions aren't led anew, then all is well."""
    state = session()
    fence = Fence(state)
    assert fence.is_up()
    state.is_fenced, state.broker_epoch = False, 7
    state.image = image(6, (BROKER, 7))
    assert fence.is_up()
    state.image = image(8, (BROKER, 7), (BROKER, 3), (2, 3))
    assert fence.is_up()
    state.image = image(9, (BROKER, 7), (BROKER, 7), (2, 3))
    assert not fence.is_up()


def test_the_fence_goes_up_with_the_lease_and_down_with_it() -> None:
    """A renewal after a pause is no new registration: what was led goes on. Another registration is."""
    state = session(broker_epoch=7, is_fenced=False, image=image(9, (BROKER, 7)))
    fence = Fence(state)
    assert fence.turned() is None
    state.is_fenced = True
    assert [fence.turned(), fence.turned()] == [True, None]
    state.is_fenced = False
    assert [fence.turned(), fence.turned()] == [False, None]
    state.broker_epoch = 10
    state.image = image(10, (BROKER, 7))
    assert fence.turned() is True
    state.image = image(11, (BROKER, 10))
    assert fence.turned() is False


def test_what_is_flushed_behind_a_fence_is_not_acknowledged() -> None:
    """The flush ends at any time, also after the broker was given up."""
    partition: Any = SimpleNamespace(topic_partition=TopicPartition("t", 0), log=SimpleNamespace(recovery_point=0))
    fenced = False

    def find(_topic: str, _partition: int) -> Any:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if fenced else partition

    replicas: Any = SimpleNamespace(is_fenced=lambda: fenced, find=find, flushes=SimpleNamespace(watch=lambda _request: True))
    for up in (False, True):
        fenced, partition.log.recovery_point = False, 0
        answer = PartitionProduceResponse(index=0, error_code=ErrorCode.NONE, base_offset=5, log_append_time_ms=-1, log_start_offset=0)
        request = DelayedProduce(replicas, ProduceResponse(responses=[]), [FlushWait(partition, 6, answer)], 1000)
        assert request.start() is request.pending
        fenced, partition.log.recovery_point = up, 6
        assert request.try_complete()
        assert answer.error_code == (ErrorCode.NOT_LEADER_OR_FOLLOWER if up else ErrorCode.NONE)
