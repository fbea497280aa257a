"""Which logs are removed: those of deleted topics, and those of partitions that were moved away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.partitions import strays
from lowtide.metadata import keys
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage, unknown_partition
from lowtide.metadata.unreadable_keys import Unreadable
from lowtide.protocol.types import TopicPartition

TOPIC_ID, DELETED, UNKNOWN = b"T" * 16, b"D" * 16, b"U" * 16


def partition(*replicas: int) -> PartitionImage:
    return PartitionImage(replicas, replicas, (1,) * len(replicas), replicas[0], 7, 1, 1)


def test_only_logs_that_the_metadata_has_as_deleted_or_moved_are_strays() -> None:
    """A missing topic proves nothing, nor does an assignment that is older than the log's latest epoch."""
    topic = TopicImage("t", TOPIC_ID, (partition(1, 2), partition(2, 3)), {}, 1)
    image = MetadataImage(9, topics={"t": topic}, topic_names={TOPIC_ID: "t"}, deleted_topics={DELETED: 5})

    def has_to_go(number: int, topic_id: bytes, latest_epoch: int) -> bool:
        return strays.has_to_go(image, 1, TopicPartition("t", number), topic_id, latest_epoch)

    assert has_to_go(0, DELETED, 99)
    assert not has_to_go(0, UNKNOWN, 0)
    assert not has_to_go(0, TOPIC_ID, 3), "it is here"
    assert has_to_go(1, TOPIC_ID, 7), "it is elsewhere"
    assert not has_to_go(1, TOPIC_ID, 8), "these metadata are older than the log"
    assert not has_to_go(2, TOPIC_ID, 3), "the partition is not part of the topic"


UNREADABLE = {
    "partition": MetadataImage(
        9, topics={"t": TopicImage("t", TOPIC_ID, (unknown_partition(8),), {}, 1)}, topic_names={TOPIC_ID: "t"}
    ),
    "topic": MetadataImage(9, unreadable={keys.topic("t"): Unreadable(8, "broken")}),
}


@pytest.mark.parametrize("image", UNREADABLE.values(), ids=UNREADABLE)
def test_a_log_whose_metadata_cannot_be_read_stays_where_it_is(image: MetadataImage) -> None:
    log: Any = SimpleNamespace(offline=False, directory="/d/t-0", parent_directory="/d", topic_id=TOPIC_ID)
    nothing: Any = SimpleNamespace(exists=lambda _path: False)
    key = TopicPartition("t", 0)
    assert strays.settle_strays(image, 1, {key: log}, nothing, (), nothing) == {}
    assert not strays.has_to_go(image, 1, key, TOPIC_ID, -1)
    assert strays.settle_strays(MetadataImage(9), 1, {key: log}, nothing, (), nothing) == {key: TOPIC_ID}
