"""The topics of the cluster as modern groups see them: names, ids, partition counts and racks.

A group keeps a hash of its topics with its epoch. Creating, deleting, growing or moving a topic to other racks changes
the hash, and so raises the epoch. The hash need not equal Kafka's: a broker of another make that reads the record
raises the epoch once. Source: KIP-1101; Kafka's `ModernGroup.computeMetadataHash`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from lowtide.metadata.image import ImageDelta, MetadataImage, TopicImage
from lowtide.protocol.messages.offset_commit import OffsetCommitRequestTopic
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequestTopic
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId

_HASH_BYTES = 8


class ImageHolder(Protocol):
    """Holds the newest image."""

    @property
    def image(self) -> MetadataImage: ...


class NoCluster:
    """Holds an empty image."""

    image = MetadataImage()


class TopicView:
    """The topics as groups see them. All groups of a broker share one."""

    def __init__(self, holder: ImageHolder) -> None:
        self._holder = holder
        self._hashes: dict[str, tuple[TopicImage, object, bytes]] = {}
        self._numbered: MetadataImage | None = None
        self._number = 0
        self.new_topics_revision = holder.image.revision
        """The revision of the last image with a new topic."""

    @property
    def image(self) -> MetadataImage:
        """The newest image."""
        return self._holder.image

    @property
    def image_number(self) -> int:
        """The number of the newest image, which differs from those of all earlier ones.

        A group that kept an image would keep all its topics.
        """
        if self._holder.image is not self._numbered:
            self._numbered = self._holder.image
            self._number += 1
        return self._number

    def ids_of(self, names: Iterable[str]) -> frozenset[TopicId]:
        """Returns the ids of the topics that exist."""
        topics = self.image.topics
        return frozenset(topic.topic_id for name in names if (topic := topics.get(name)) is not None)

    def partition_counts(self, topic_ids: Iterable[TopicId]) -> dict[TopicId, int]:
        """Returns the number of partitions of each topic that exists."""
        image = self.image
        return {
            topic_id: len(topic.partitions)
            for topic_id in topic_ids
            if (topic := image.topic_by_id(topic_id)) is not None
        }

    def places(
        self, topics: Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic]
    ) -> Iterator[tuple[TopicId, int]]:
        """Yields the partitions of a commit, for topics that exist."""
        known = self.image.topics
        for topic in topics:
            topic_id = topic.topic_id
            if topic_id == ZERO_TOPIC_ID:
                found = known.get(topic.name)
                if found is None:
                    continue
                topic_id = found.topic_id
            for row in topic.partitions:
                yield topic_id, row.partition_index

    def hash_of(self, names: Iterable[str]) -> int:
        """Returns a hash of these topics; 0 if none of them exists."""
        image = self.image
        whole = hashlib.blake2b(digest_size=_HASH_BYTES)
        is_empty = True
        for name in sorted(names):
            topic = image.topics.get(name)
            if topic is not None:
                whole.update(self._topic_hash(image, topic))
                is_empty = False
        return 0 if is_empty else int.from_bytes(whole.digest(), "big", signed=True)

    def _topic_hash(self, image: MetadataImage, topic: TopicImage) -> bytes:
        known = self._hashes.get(topic.name)
        if known is not None and known[0] is topic and known[1] is image.known_brokers:
            return known[2]
        made = _hash_topic(
            topic, {broker_id: broker.rack for broker_id, broker in image.known_brokers.items() if broker.rack}
        )
        self._hashes[topic.name] = (topic, image.known_brokers, made)
        return made

    def note_changes(self, delta: ImageDelta) -> None:
        """Updates the view after a new image."""
        for topic in delta.topics_deleted:
            self._hashes.pop(topic.name, None)
        if delta.topics_created:
            self.new_topics_revision = self.image.revision


def _hash_topic(topic: TopicImage, racks: Mapping[int, str]) -> bytes:
    made = hashlib.blake2b(topic.topic_id, digest_size=_HASH_BYTES)
    made.update(topic.name.encode())
    made.update(len(topic.partitions).to_bytes(4, "big"))
    if racks:
        for partition in topic.partitions:
            places = sorted(racks[replica] for replica in partition.replicas if replica in racks)
            made.update(b"\0".join(place.encode() for place in places) + b"\1")
    return made.digest()
