"""The controller and the new leaders log unclean elections in few lines, for any number of partitions."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.lifecycle.image_lines import UncleanElections
from lowtide.metadata.image import ImageDelta, MetadataImage, PartitionImage, TopicImage

TOPIC_ID = b"T" * 16
COUNT = 3000


class Lines:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **what: Any) -> None:
        self.told.append((event, what))


def image_of(leader: int) -> MetadataImage:
    partitions = tuple(
        PartitionImage((1, 2), (leader,), (10 * leader,), leader, leader, 7, 900, (), ()) for _ in range(COUNT)
    )
    topic = TopicImage("t", TOPIC_ID, partitions, {}, 500)
    return MetadataImage(
        revision=1000,
        controller_id=3,
        controller_revision=5,
        brokers={},
        topics={"t": topic},
        topic_names={TOPIC_ID: "t"},
    )


@pytest.mark.parametrize(("broker_id", "lines", "count"), [(1, 0, 0), (2, 1, 0), (3, 1, COUNT)])
def test_the_controller_and_the_new_leader_log_it_and_the_controller_counts(
    broker_id: int, lines: int, count: int
) -> None:
    log = Lines()
    new = image_of(2)
    elections = UncleanElections(broker_id, log)
    elections.on_image(image_of(1), new, ImageDelta(topics_changed=tuple(new.topics.values())))
    assert elections.count == count
    assert [what for _, what in log.told] == [
        {"partitions": COUNT, "some_partitions": [f"t-{number}" for number in range(5)]}
    ] * lines
    assert len({event for event, _ in log.told}) == lines
