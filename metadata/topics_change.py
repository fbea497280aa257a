"""One step from the topics of an image to those of the next.

Guards: a topic is visible only with all its partitions; a partition without its topic is invisible, and kept as loose until its topic
counts it, or its key is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.image import NO_CONFIGS, PartitionImage, TopicImage, partition_image
from lowtide.metadata.records import MetadataCorruptError, PartitionRecord, TopicRecord, decode
from lowtide.protocol.types import TopicId, parse_topic_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import Event, KeyValue


class TopicsImage(NamedTuple):
    """The part of an image that is about topics: by name, names by id, and partitions whose topic doesn't exist, by its id."""

    by_name: Mapping[str, TopicImage]
    names: Mapping[TopicId, str]
    loose: Mapping[TopicId, Mapping[int, PartitionImage]]


class TopicsChange:
    """Collects the changes of one revision. Copies a mapping at most once, and only if it changes."""

    def __init__(self, old: TopicsImage) -> None:
        self._old = old
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[TopicId, str] | None = None
        self._loose: dict[TopicId, Mapping[int, PartitionImage]] | None = None
        self._records: list[tuple[bytes, KeyValue | Event]] = []
        self._configs: list[tuple[bytes, KeyValue | Event]] = []
        self._partitions: dict[TopicId, dict[int, PartitionImage | None]] = {}
        """A partition that is deleted stands as None."""
        self.touched_names: dict[str, None] = {}
        """The topics of which something may be different, once `finish` was called."""
        self.touched_numbers: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """The numbers of their partitions that are others, or new. Those of a topic that was not there before may be missing."""

    def apply(self, key: bytes, change: KeyValue | Event) -> bool:
        """Collect a change, if it is about topics. Returns whether it is. Errors: MetadataCorruptError."""
        if key.startswith(keys.PARTITIONS):
            topic_id, number = keys.parse_partition(key)
            partition = None if change.value is None else _partition(key, change.value, change)
            self._partitions.setdefault(topic_id, {})[number] = partition
        elif key.startswith(keys.TOPICS):
            self._records.append((key, change))
        elif key.startswith(keys.TOPIC_CONFIGS):
            self._configs.append((key, change))
        else:
            return False
        return True

    def finish(self) -> TopicsImage:
        """The topics after all changes, in an order in which a topic finds its partitions whatever theirs was.

        Errors: MetadataCorruptError.
        """
        for key, change in self._records:
            if change.value is None:
                self._remove_topic(key)
        for topic_id, changed in self._partitions.items():
            self._apply_partitions(topic_id, changed)
        for key, change in self._records:
            if change.value is not None:
                self._put_topic(key, change.value, change)
        for key, change in self._configs:
            self._apply_config(key, change)
        old = self._old
        return TopicsImage(
            old.by_name if self._topics is None else self._topics,
            old.names if self._topic_names is None else self._topic_names,
            old.loose if self._loose is None else self._loose,
        )

    def _apply_partitions(self, topic_id: TopicId, changed: Mapping[int, PartitionImage | None]) -> None:
        """Change the partitions of a topic. Those beyond its count stay loose until its record counts them."""
        name = (self._old.names if self._topic_names is None else self._topic_names).get(topic_id)
        topic = None if name is None else self._topic(name)
        if topic is None:
            self._apply_loose(topic_id, changed)
            return
        partitions = list(topic.partitions)
        loose: dict[int, PartitionImage | None] = {}
        for number, partition in changed.items():
            if number >= len(partitions):
                loose[number] = partition
            elif partition is None:
                _refuse(topic, f"partition {number} is gone")
            else:
                partitions[number] = partition
                self.touched_numbers[topic.name][number] = None
        if len(loose) < len(changed):
            self._set_topic(msgspec.structs.replace(topic, partitions=tuple(partitions)))
        if loose:
            self._apply_loose(topic_id, loose)

    def _apply_loose(self, topic_id: TopicId, changed: Mapping[int, PartitionImage | None]) -> None:
        """Keep partitions that have no topic. Only the chunks of one creation share a mapping, and each is copied once per batch."""
        if self._loose is None:
            self._loose = dict(self._old.loose)
        kept = dict(self._loose.get(topic_id, {}))
        for number, partition in changed.items():
            if partition is None:
                kept.pop(number, None)
            else:
                kept[number] = partition
        if kept:
            self._loose[topic_id] = kept
        else:
            self._loose.pop(topic_id, None)

    def _put_topic(self, key: bytes, value: bytes, change: KeyValue | Event) -> None:
        name = key.removeprefix(keys.TOPICS).decode()
        record = decode(key, value, TopicRecord)
        topic_id = parse_topic_id(record.topic_id)
        before = self._topic(name)
        if before is not None and before.topic_id != topic_id:
            self._remove_topic(key)
            before = None
        found = self._take_loose(topic_id, record.partitions)
        added = tuple(found[number] for number in sorted(found))
        if before is None:
            topic = TopicImage(name, topic_id, added, NO_CONFIGS, change.modify_revision)
            self._names_to_change()[topic_id] = name
        else:
            self.touched_numbers[name].update(dict.fromkeys(range(len(before.partitions), len(before.partitions) + len(added))))
            topic = msgspec.structs.replace(before, partitions=before.partitions + added, modify_revision=change.modify_revision)
        if len(topic.partitions) != record.partitions:
            _refuse(topic, f"has {len(topic.partitions)} partitions instead of {record.partitions}")
        self._set_topic(topic)

    def _remove_topic(self, key: bytes) -> None:
        """Forget a topic. Its partitions are loose until their keys are deleted too."""
        name = key.removeprefix(keys.TOPICS).decode()
        topic = self._topics_to_change().pop(name, None)
        self.touched_names[name] = None
        if topic is not None:
            del self._names_to_change()[topic.topic_id]
            self._apply_loose(topic.topic_id, dict(enumerate(topic.partitions)))

    def _apply_config(self, key: bytes, change: KeyValue | Event) -> None:
        name = key.removeprefix(keys.TOPIC_CONFIGS).decode()
        topic = self._topic(name)
        if topic is None:
            return
        if change.value is None:
            self._set_topic(msgspec.structs.replace(topic, configs=NO_CONFIGS, config_revision=0))
        else:
            configs = decode(key, change.value, dict[str, str])
            self._set_topic(msgspec.structs.replace(topic, configs=configs, config_revision=change.modify_revision))

    def _topic(self, name: str) -> TopicImage | None:
        return (self._old.by_name if self._topics is None else self._topics).get(name)

    def _topics_to_change(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._old.by_name)
        return self._topics

    def _names_to_change(self) -> dict[TopicId, str]:
        if self._topic_names is None:
            self._topic_names = dict(self._old.names)
        return self._topic_names

    def _take_loose(self, topic_id: TopicId, end: int) -> Mapping[int, PartitionImage]:
        """The loose partitions of a topic with numbers below `end`. Others stay: an attempt to add more was given up."""
        if self._loose is None:
            self._loose = dict(self._old.loose)
        found = self._loose.pop(topic_id, {})
        beyond = {number: partition for number, partition in found.items() if number >= end}
        if not beyond:
            return found
        self._loose[topic_id] = beyond
        return {number: partition for number, partition in found.items() if number < end}

    def _set_topic(self, topic: TopicImage) -> None:
        self._topics_to_change()[topic.name] = topic
        self.touched_names[topic.name] = None


def _refuse(topic: TopicImage, reason: str) -> NoReturn:
    message = f"topic {topic.name} in the metadata store: {reason}"
    raise MetadataCorruptError(message)


def _partition(key: bytes, value: bytes, change: KeyValue | Event) -> PartitionImage:
    record = decode(key, value, PartitionRecord)
    if len(record.isr) != len(record.isr_epochs):
        message = f"{key.decode()} in the metadata store has {len(record.isr)} in-sync replicas and {len(record.isr_epochs)} epochs"
        raise MetadataCorruptError(message)
    if len(record.elr) != len(record.elr_epochs):
        message = f"{key.decode()} in the metadata store has {len(record.elr)} eligible leaders and {len(record.elr_epochs)} epochs"
        raise MetadataCorruptError(message)
    return partition_image(record, change.modify_revision)
