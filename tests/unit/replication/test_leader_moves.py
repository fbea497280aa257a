"""How a leader has another member of the ISR lead: what it relies on, and what becomes of the order of the replicas."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_image import StaleMark
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import PartitionRecord, decode
from lowtide.metadata.store import ABSENT, Compare, Put
from lowtide.replication.controller import plan_controller_work
from lowtide.replication.leader_moves import plan_leader_move

TOPIC_ID = b"T" * 16
ALIVE = {1: 10, 2: 20, 3: 30}


def partition(
    replicas: tuple[int, ...] = (1, 2, 3), isr: tuple[int, ...] = (1, 2, 3), **fields: object
) -> PartitionImage:
    """Led by 1. Members joined under the epoch of ten times their id; leader epoch 5, partition epoch 7."""
    return msgspec.structs.replace(
        PartitionImage(replicas, isr, tuple(10 * each for each in isr), 1, 5, 7, 900), **fields
    )


def image_of(state: PartitionImage, brokers: dict[int, int] | None = None, **fields: object) -> MetadataImage:
    known = {
        each: BrokerImage(each, epoch, (), in_controlled_shutdown=False) for each, epoch in (brokers or ALIVE).items()
    }
    image = MetadataImage(
        revision=1000,
        controller_id=1,
        controller_revision=5,
        brokers=known,
        topics={"t": TopicImage("t", TOPIC_ID, (state,), {}, 500)},
        topic_names={TOPIC_ID: "t"},
    )
    return msgspec.structs.replace(image, **fields)


def moved(image: MetadataImage, receiver: int = 2, leader: int = 1) -> PartitionRecord | None:
    step = plan_leader_move(image, leader, image.topics["t"], 0, receiver)
    if step is None:
        return None
    (operation,) = step.operations
    assert isinstance(operation, Put)
    return decode(operation.key, operation.value, PartitionRecord)


def test_what_is_written_and_compared() -> None:
    """A new leader epoch, the ISR as it was, and that it all still holds when it is written."""
    image = image_of(partition())
    record = moved(image)
    assert record == PartitionRecord(
        replicas=(2, 1, 3), isr=(1, 2, 3), isr_epochs=(10, 20, 30), leader=2, leader_epoch=6, partition_epoch=8
    )
    step = plan_leader_move(image, 1, image.topics["t"], 0, 2)
    assert step is not None
    assert set(step.compares) == {
        Compare(keys.partition(TOPIC_ID, 0), "modify", "==", 900),
        Compare(keys.shutdown(2), "create", "==", ABSENT),
        Compare(keys.broker(2), "create", "==", 20),
        Compare(keys.broker(3), "create", "==", 30),
    }


@pytest.mark.parametrize(
    ("replicas", "after"),
    [
        ((1, 2, 3), (2, 1, 3)),
        ((1, 3, 2), (2, 3, 1)),
        ((3, 1, 2), (3, 2, 1)),
        ((2, 1, 3), (2, 1, 3)),
        ((2, 3, 1), (2, 3, 1)),
    ],
)
def test_the_controller_takes_nothing_back(replicas: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Only a preferred replica other than these two gets its leadership back, as without the move."""
    record = moved(image_of(partition(replicas)))
    assert record is not None
    assert record.replicas == after
    state = PartitionImage(after, record.isr, record.isr_epochs, 2, 6, 8, 901)
    plan = plan_controller_work(image_of(state), rebalance=True)
    puts = [
        each
        for step in plan.steps
        for each in step.operations
        if isinstance(each, Put) and each.key == keys.partition(TOPIC_ID, 0)
    ]
    leaders = {decode(each.key, each.value, PartitionRecord).leader for each in puts}
    assert leaders == (set() if after[0] == 2 else {3})


@pytest.mark.parametrize(
    "image",
    [
        pytest.param(image_of(partition(isr=(1, 3))), id="not-in-sync"),
        pytest.param(image_of(partition(leader=3)), id="another-one-leads"),
        pytest.param(image_of(partition(leader=2)), id="it-leads-already"),
        pytest.param(image_of(partition(), {1: 10, 2: 21, 3: 30}), id="it-has-registered-again"),
        pytest.param(image_of(partition(), {1: 10, 3: 30}), id="it-is-away"),
        pytest.param(image_of(partition(), {1: 10, 2: 20, 3: 31}), id="another-member-has-registered-again"),
        pytest.param(image_of(partition(), {1: 11, 2: 20, 3: 30}), id="the-leader-has-registered-again"),
        pytest.param(image_of(partition(replicas=(1, 2, 3, 4), adding=(4,))), id="a-replica-is-added"),
        pytest.param(image_of(partition(removing=(3,))), id="a-replica-is-removed"),
        pytest.param(
            image_of(partition(), offline_replicas={2: {TOPIC_ID: frozenset({0})}}), id="its-directory-is-offline"
        ),
        pytest.param(
            image_of(partition(), stale_marks={2: (StaleMark(1, 25, {TOPIC_ID: frozenset({0})}),)}),
            id="it-has-lost-what-it-had",
        ),
    ],
)
def test_where_it_may_not_be(image: MetadataImage) -> None:
    """The receiver has all that was committed, and nothing else is under way with the partition."""
    assert moved(image) is None


def test_one_that_wants_to_stop_gets_nothing() -> None:
    """The image may not show it yet: then the comparison does."""
    image = image_of(partition())
    stopping = {**image.brokers, 2: BrokerImage(2, 20, (), in_controlled_shutdown=True)}
    assert moved(msgspec.structs.replace(image, brokers=stopping)) is None
