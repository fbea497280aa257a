"""One step from the topics of an image to those of the next.

Guards: a topic is visible only with all its partitions, of which those that can't be read have no leader; a partition
without its topic is invisible, and kept as loose until its topic counts it, or its key is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.image import (
    KEEPING_CONFIGS,
    NO_CONFIGS,
    PartitionImage,
    TopicImage,
    partition_image,
    unknown_partition,
)
from lowtide.metadata.records import MetadataCorruptError, PartitionRecord, TopicRecord, decode
from lowtide.metadata.store import ABSENT
from lowtide.protocol.types import TopicId, parse_topic_id, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import Event, KeyValue, Revision
    from lowtide.metadata.unreadable_keys import UnreadableKeys


PARTITIONS_MAX: Final = 1_000_000
"""Of a topic: a record that says more is not one of ours (a partition's key has six digits)."""


class TopicsImage(NamedTuple):
    """The part of an image that is about topics: by name, names by id, and partitions whose topic doesn't exist, by its id."""

    by_name: Mapping[str, TopicImage]
    names: Mapping[TopicId, str]
    loose: Mapping[TopicId, Mapping[int, PartitionImage]]


class TopicsChange:
    """Collects the changes of one revision. Copies a mapping at most once, and only if it changes."""

    def __init__(self, old: TopicsImage, kept: TopicsImage, unreadable: UnreadableKeys) -> None:
        """`kept` is what was known before, also where `old` is empty because everything is read again."""
        self._old = old
        self._kept = kept
        self._unreadable = unreadable
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[TopicId, str] | None = None
        self._loose: dict[TopicId, Mapping[int, PartitionImage]] | None = None
        self._records: list[tuple[str, tuple[TopicId, int] | None, Revision]] = []
        """Names, ids and numbers of partitions, None for a topic that is deleted."""
        self._configs: list[tuple[str, Mapping[str, str] | None, Revision]] = []
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
            name = _topic_name(key, keys.TOPICS)
            record = None if change.value is None else decode(key, change.value, TopicRecord)
            known = None if record is None else (parse_topic_id(record.topic_id), record.partitions)
            if record is not None and not 0 <= record.partitions <= PARTITIONS_MAX:
                raise MetadataCorruptError(f"{key.decode()} in the metadata store has {record.partitions} partitions")
            self._records.append((name, known, change.modify_revision))
        elif key.startswith(keys.TOPIC_CONFIGS):
            name = _topic_name(key, keys.TOPIC_CONFIGS)
            configs = None if change.value is None else decode(key, change.value, dict[str, str])
            self._configs.append((name, configs, change.modify_revision))
        else:
            return False
        return True

    def hold(self, key: bytes, revision: Revision) -> bool:
        """A key about topics can't be read: show what was known, or what harms nothing. Returns whether it was known.

        Errors: ValueError where the key names nothing.
        """
        if key.startswith(keys.PARTITIONS):
            topic_id, number = keys.parse_partition(key)
            known = self._known_partition(topic_id, number)
            state = (
                unknown_partition(revision)
                if known is None
                else msgspec.structs.replace(known, modify_revision=revision)
            )
            self._partitions.setdefault(topic_id, {})[number] = state
            return known is not None and known.is_known
        name = _topic_name(key, keys.TOPICS if key.startswith(keys.TOPICS) else keys.TOPIC_CONFIGS)
        topic = self._kept.by_name.get(name)
        if key.startswith(keys.TOPICS):
            if topic is not None:
                self._records.append((name, (topic.topic_id, len(topic.partitions)), revision))
        else:
            self._configs.append((name, KEEPING_CONFIGS if topic is None else topic.configs, revision))
        return topic is not None

    def _known_partition(self, topic_id: TopicId, number: int) -> PartitionImage | None:
        name = self._kept.names.get(topic_id)
        if name is None:
            return self._kept.loose.get(topic_id, {}).get(number)
        partitions = self._kept.by_name[name].partitions
        return partitions[number] if 0 <= number < len(partitions) else None

    def finish(self) -> TopicsImage:
        """The topics after all changes, in an order in which a topic finds its partitions whatever theirs was.

        Errors: MetadataCorruptError.
        """
        for name, known, _ in self._records:
            if known is None:
                self._remove_topic(name)
        for topic_id, changed in self._partitions.items():
            self._apply_partitions(topic_id, changed)
        for name, known, revision in self._records:
            if known is not None:
                self._put_topic(name, *known, revision)
        for name, configs, revision in self._configs:
            self._apply_config(name, configs, revision)
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
            else:
                partitions[number] = (
                    self._gone(topic_id, number, partitions[number]) if partition is None else partition
                )
                self.touched_numbers[topic.name][number] = None
        if len(loose) < len(changed):
            self._set_topic(msgspec.structs.replace(topic, partitions=tuple(partitions)))
        if loose:
            self._apply_loose(topic_id, loose)

    def _apply_loose(self, topic_id: TopicId, changed: Mapping[int, PartitionImage | None]) -> None:
        """Keep partitions that have no topic.

        Only the chunks of one creation share a mapping, and each is copied once per batch.
        """
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

    def _gone(self, topic_id: TopicId, number: int, known: PartitionImage) -> PartitionImage:
        """A partition of a topic has no record: its state from before, which the next change of it writes again."""
        self._unreadable.note(
            keys.partition(topic_id, number), ABSENT, "it is missing, and its topic is there", keeps=known.is_known
        )
        return msgspec.structs.replace(known, modify_revision=ABSENT)

    def _put_topic(self, name: str, topic_id: TopicId, count: int, revision: Revision) -> None:
        before = self._topic(name)
        if before is not None and before.topic_id != topic_id:
            self._remove_topic(name)
            before = None
        first = 0 if before is None else len(before.partitions)
        if count < first:
            self._unreadable.note(
                keys.topic(name), revision, f"it has {first} partitions, and its record says {count}", keeps=True
            )
            count = first
        found = self._take_loose(topic_id, count)
        added = []
        for number in range(first, count):
            partition = found.get(number)
            if partition is None:
                known = self._known_partition(topic_id, number)
                partition = self._gone(topic_id, number, unknown_partition(ABSENT) if known is None else known)
            added.append(partition)
        if before is None:
            topic = TopicImage(name, topic_id, tuple(added), NO_CONFIGS, revision)
            self._names_to_change()[topic_id] = name
        else:
            self.touched_numbers[name].update(dict.fromkeys(range(first, count)))
            topic = msgspec.structs.replace(
                before, partitions=before.partitions + tuple(added), modify_revision=revision
            )
        self._set_topic(topic)

    def _remove_topic(self, name: str) -> None:
        """Forget a topic. Its partitions are loose until their keys are deleted too."""
        topic = self._topics_to_change().pop(name, None)
        self.touched_names[name] = None
        if topic is not None:
            self._unreadable.forget_under(keys.PARTITIONS + topic_id_text(topic.topic_id).encode())
            del self._names_to_change()[topic.topic_id]
            kept = {number: state for number, state in enumerate(topic.partitions) if state.modify_revision != ABSENT}
            self._apply_loose(topic.topic_id, kept)

    def _apply_config(self, name: str, configs: Mapping[str, str] | None, revision: Revision) -> None:
        topic = self._topic(name)
        if topic is None:
            return
        if configs is None:
            self._set_topic(msgspec.structs.replace(topic, configs=NO_CONFIGS, config_revision=ABSENT))
        else:
            self._set_topic(msgspec.structs.replace(topic, configs=configs, config_revision=revision))

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
        """The loose partitions of a topic with numbers below `end`.

        Others stay: an attempt to add more was given up.
        """
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


def _topic_name(key: bytes, prefix: bytes) -> str:
    """The name of a topic, in which there is no separator. Errors: MetadataCorruptError, ValueError."""
    name = key.removeprefix(prefix).decode()
    if not name or "/" in name:
        message = f"{key.decode(errors='replace')} in the metadata store doesn't name a topic"
        raise MetadataCorruptError(message)
    return name


def _partition(key: bytes, value: bytes, change: KeyValue | Event) -> PartitionImage:
    record = decode(key, value, PartitionRecord)
    if len(record.isr) != len(record.isr_epochs):
        message = f"{key.decode()} in the metadata store has {len(record.isr)} in-sync replicas and {len(record.isr_epochs)} epochs"
        raise MetadataCorruptError(message)
    if len(record.elr) != len(record.elr_epochs):
        message = f"{key.decode()} in the metadata store has {len(record.elr)} eligible leaders and {len(record.elr_epochs)} epochs"
        raise MetadataCorruptError(message)
    return partition_image(record, change.modify_revision)
