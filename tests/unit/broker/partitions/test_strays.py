"""Which logs have to go: those whose topic the metadata hold to be deleted, and those of partitions that were moved away."""

from __future__ import annotations

from types import SimpleNamespace

from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.types import TopicPartition

TOPIC_ID, DELETED, UNKNOWN = b"T" * 16, b"D" * 16, b"U" * 16


def partition(*replicas: int) -> PartitionImage:
    return PartitionImage(replicas, replicas, (1,) * len(replicas), replicas[0], 7, 1, 1)


def test_only_what_the_metadata_hold_to_be_deleted_or_moved_has_to_go() -> None:
    """That a topic is missing proves nothing, nor does an assignment that is older than what the log has seen."""
    topic = TopicImage("t", TOPIC_ID, (partition(1, 2), partition(2, 3)), {}, 1)
    image = MetadataImage(9, topics={"t": topic}, topic_names={TOPIC_ID: "t"}, deleted_topics={DELETED: 5})
    manager = SimpleNamespace(image=image, broker_id=1)

    def has_to_go(number: int, topic_id: bytes, latest_epoch: int) -> bool:
        return ReplicaManager._has_to_go(manager, TopicPartition("t", number), topic_id, latest_epoch)  # type: ignore[arg-type]

    assert has_to_go(0, DELETED, 99)
    assert not has_to_go(0, UNKNOWN, 0)
    assert not has_to_go(0, TOPIC_ID, 3), "it is here"
    assert has_to_go(1, TOPIC_ID, 7), "it is elsewhere"
    assert not has_to_go(1, TOPIC_ID, 8), "these metadata are older than the log"
    assert not has_to_go(2, TOPIC_ID, 3), "a partition that the topic doesn't count"
