"""A change of one partition costs a broker the same in a topic of ten thousand partitions as in one of ten."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, SupportsIndex

import msgspec
import pytest

from lowtide.broker.lifecycle.image_lines import ImageLines, UncleanElections
from lowtide.broker.partitions.assigned_partitions import AssignedPartitions
from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage, TopicImage
from lowtide.replication.controller import DEFAULT_SETTINGS, ControllerWork
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.runtime.simulated_ports import SimulatedClock

COUNT = 10_000
CHANGED = 7_777
LOOKS_MAX = 10
TOPIC_ID = b"T" * 16


class Partitions(tuple[PartitionImage, ...]):
    """Partitions that count how often one of them is looked at."""

    __slots__ = ()
    looks = 0

    def __iter__(self) -> Iterator[PartitionImage]:
        for partition in super().__iter__():
            Partitions.looks += 1
            yield partition

    def __getitem__(self, number: SupportsIndex) -> PartitionImage:  # type: ignore[override]
        Partitions.looks += 1
        return super().__getitem__(number)


def image_of(revision: int, partitions: Partitions) -> MetadataImage:
    topic = TopicImage("t", TOPIC_ID, partitions, {}, 1)
    return MetadataImage(revision, "c", 1, 1, topics={"t": topic}, topic_names={TOPIC_ID: "t"})


@pytest.fixture
def step() -> tuple[MetadataImage, MetadataImage, ImageDelta]:
    """An image, the one after it, and what changed: the leader epoch of one partition."""
    first = PartitionImage((2, 3), (2, 3), (20, 30), 2, 1, 1, 1)
    before = [msgspec.structs.replace(first) for _ in range(COUNT)]
    after = list(before)
    after[CHANGED] = msgspec.structs.replace(first, leader=3, leader_epoch=2, modify_revision=2)
    old, new = image_of(1, Partitions(before)), image_of(2, Partitions(after))
    configs = old.topics["t"].configs
    new = msgspec.structs.replace(new, topics={"t": msgspec.structs.replace(new.topics["t"], configs=configs)})
    Partitions.looks = 0
    return old, new, ImageDelta(topics_changed=(new.topics["t"],), partitions_changed={"t": (CHANGED,)})


def test_lines_of_the_log(step: tuple[MetadataImage, MetadataImage, ImageDelta]) -> None:
    logged: list[Any] = []
    log: Any = SimpleNamespace(
        info=lambda event, **values: logged.append((event, values)), warning=lambda *_a, **_k: None
    )
    lines = ImageLines(1, log)
    lines.on_image(*step)
    assert 0 < Partitions.looks < LOOKS_MAX
    lines.on_tick()
    assert [values["partitions"] for event, values in logged if event == "leaders are elected"] == [1]


def test_unclean_elections(step: tuple[MetadataImage, MetadataImage, ImageDelta]) -> None:
    UncleanElections(1, None).on_image(*step)
    assert 0 < Partitions.looks < LOOKS_MAX


def test_work_of_the_controller(step: tuple[MetadataImage, MetadataImage, ImageDelta]) -> None:
    work = ControllerWork(1, lambda: DEFAULT_SETTINGS)
    work._all = False
    assert work.on_image(*step)
    assert 0 < Partitions.looks < LOOKS_MAX
    assert {topic_id: list(numbers) for topic_id, numbers in work._noted.items()} == {TOPIC_ID: [CHANGED]}


def test_partitions_of_this_broker(step: tuple[MetadataImage, MetadataImage, ImageDelta]) -> None:
    old, new, delta = step
    images = [None, old]
    led: Any = SimpleNamespace(take_settled=lambda _revision: [])
    replicas: Any = SimpleNamespace(
        broker_id=1,
        log_manager=None,
        offline=SimpleNamespace(keys=frozenset()),
        partitions={},
        led=led,
        follow=lambda _image: images.pop(0),
    )
    loop = SimulatedLoop(1)
    rules: Any = None
    followed: Any = None
    hosted: Any = None
    removals: Any = None
    assigned = AssignedPartitions(replicas, hosted, followed, removals, rules, SimulatedClock(loop), loop, None)
    assigned.on_image(old, old.topics.values(), ())
    assert Partitions.looks >= COUNT, "without an image before it, all are looked at"
    Partitions.looks = 0
    assigned.on_image(new, delta.topics_changed, (), different=delta.partitions_changed)
    assert 0 < Partitions.looks < LOOKS_MAX
    loop.close()
