"""Which partitions a controller looks at, and when preferred leaders return."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lowtide.metadata.image import ImageDelta, MetadataImage, TopicImage
from lowtide.metadata.records import NO_LEADER, PartitionRecord, decode
from lowtide.replication.controller import (
    PREFERRED_ELECTIONS_MAX,
    ControllerSettings,
    ControllerWork,
    plan_controller_work,
)

from .test_elections import ALIVE, TOPIC_ID, image_of, partition

INTERVAL_MS = 1000
UNCLEAN = {"unclean.leader.election.enable": "true"}
LEADERLESS = partition((4,), NO_LEADER, replicas=(1, 2, 3, 4))
"""Its only member is gone: it waits, or is led uncleanly."""


def settled(image: MetadataImage, settings: ControllerSettings | None = None) -> ControllerWork:
    """The controller, broker 1, which has found nothing to do."""
    work = ControllerWork(1, lambda: settings or ControllerSettings(rebalance_interval_ms=INTERVAL_MS))
    assert work.plan(image).is_empty
    assert not work.is_due
    return work


def topics_of(*topics: TopicImage, **more: Any) -> MetadataImage:
    image = image_of(ALIVE, **more)
    return msgspec.structs.replace(
        image, topics={t.name: t for t in topics}, topic_names={t.topic_id: t.name for t in topics}
    )


def topic(name: str, *partitions: Any, **configs: str) -> TopicImage:
    return TopicImage(name, name.encode() * 16, partitions, configs, 500)


def leaders(image: MetadataImage, **options: Any) -> list[int]:
    steps = plan_controller_work(image, **options).steps
    return [decode(b"", operation.value, PartitionRecord).leader for step in steps for operation in step.operations]


FAILED = partition((1, 2), 4)
"""Its leader isn't in sync any more: another one is elected."""


def test_only_noted_partitions_are_looked_at() -> None:
    first, second = topic("a", FAILED, FAILED), topic("b", partition(), FAILED)
    image = topics_of(first, second)
    assert leaders(image) == [1, 1, 1]
    assert leaders(image, among={second.topic_id: (0, 1)}) == [1], "behind a topic that isn't"
    assert leaders(image, among={first.topic_id: (1,), second.topic_id: (2, 3)}) == [1], "the topic has fewer by now"


def test_a_new_controller_looks_at_everything() -> None:
    image = image_of(ALIVE, partitions=(partition(),))
    assert ControllerWork(1, ControllerSettings).is_due
    work = settled(image)
    elsewhere = msgspec.structs.replace(image, controller_id=2)
    assert not work.on_image(image, elsewhere, ImageDelta())
    assert work.on_image(elsewhere, image, ImageDelta()), "it is the controller again"
    assert work.plan(image).is_empty
    assert not work.is_due


def test_a_controller_that_comes_back_rebalances_after_the_interval_only() -> None:
    image = image_of(ALIVE, partitions=(partition(leader=2),))
    work = settled(image)
    assert not work.on_tick(image, 0)
    assert work.on_tick(image, INTERVAL_MS)
    assert work.is_due
    elsewhere = msgspec.structs.replace(image, controller_id=2)
    assert not work.on_image(image, elsewhere, ImageDelta())
    assert not work.on_tick(elsewhere, 2 * INTERVAL_MS)
    work.on_image(elsewhere, image, ImageDelta())
    assert work.plan(image).is_empty
    assert not work.on_tick(image, 3 * INTERVAL_MS), "its interval begins"
    assert work.on_tick(image, 4 * INTERVAL_MS)


def test_only_the_controller_rebalances() -> None:
    image = msgspec.structs.replace(image_of(ALIVE, partitions=(partition(leader=2),)), controller_id=2)
    work = ControllerWork(1, lambda: ControllerSettings(rebalance_interval_ms=INTERVAL_MS))
    assert not any(work.on_tick(image, now_ms) for now_ms in (0, INTERVAL_MS, 2 * INTERVAL_MS))


def test_an_interval_begins_when_rebalancing_is_switched_on_and_shrinks_with_its_setting() -> None:
    image = image_of(ALIVE, partitions=(partition(leader=2),))
    settings = ControllerSettings(rebalance_interval_ms=INTERVAL_MS)
    work = ControllerWork(1, lambda: settings)
    assert not work.on_tick(image, 0)
    settings = ControllerSettings(rebalances=False, rebalance_interval_ms=INTERVAL_MS)
    assert not work.on_tick(image, 500)
    settings = ControllerSettings(rebalance_interval_ms=INTERVAL_MS)
    assert not work.on_tick(image, 2500)
    assert not work.on_tick(image, 3499)
    assert work.on_tick(image, 3500)
    settings = ControllerSettings(rebalance_interval_ms=100)
    assert not work.on_tick(image, 3600), "a tenth of the last one, from now on"
    assert work.on_tick(image, 3700)


def test_so_many_preferred_leaders_return_at_once() -> None:
    """A plan of all of a large cluster would keep its controller busy."""
    many = [partition(), *[partition(leader=2)] * (PREFERRED_ELECTIONS_MAX + 3)]
    elected = leaders(image_of(ALIVE, partitions=tuple(many)), rebalance=True)
    assert elected == [1] * PREFERRED_ELECTIONS_MAX
    assert leaders(
        topics_of(topic("a", partition(), partition(leader=2)), topic("b", partition(leader=3))), rebalance=True
    ) == [1, 1]
    assert leaders(image_of(ALIVE, partitions=tuple(many))) == []


def test_a_created_topic_is_looked_at_if_it_is_not_well() -> None:
    image = topics_of()
    for created, due in ((topic("a", partition(), FAILED), True), (topic("a", partition()), False)):
        work = settled(image)
        later = topics_of(created)
        assert work.on_image(image, later, ImageDelta(topics_created=(created,))) == due
        assert bool(work.plan(later).steps) == due


@pytest.mark.parametrize("changed", [{}, UNCLEAN])
def test_all_partitions_of_a_topic_are_looked_at_when_it_allows_unclean_elections(changed: dict[str, str]) -> None:
    """Also those of a second topic. Another setting concerns none."""
    before = [topic(name, partition(), LEADERLESS) for name in "ab"]
    after = [topic(name, partition(), LEADERLESS, **(changed or {"retention.ms": "1"})) for name in "ab"]
    old, new = topics_of(*before), topics_of(*after)
    work = settled(old)
    assert work.on_image(old, new, ImageDelta(topics_changed=tuple(after))) == bool(changed)
    assert sum(len(step.operations) for step in work.plan(new).steps) == (2 if changed else 0)


def test_stale_marks_are_looked_at_when_topics_change() -> None:
    """A member may have joined again, so that a mark is needed no more."""
    marked = image_of(ALIVE, stale={2: 5}, partitions=(partition(),))
    plain = image_of(ALIVE, partitions=(partition(),))
    change = ImageDelta(topics_changed=(plain.topics["t"],))
    for image, delta, due in ((marked, change, True), (marked, ImageDelta(), False), (plain, change, False)):
        work = settled(plain)
        assert work.on_image(image, image, delta) == due
    assert plain.topics["t"].topic_id == TOPIC_ID
