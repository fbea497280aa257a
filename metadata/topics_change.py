"""Builds the topics of the next image.

Guards: a topic is visible only with all its partitions; unreadable ones have no leader. A partition without a topic is
invisible and kept as loose until its topic counts it or its key is deleted.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.draft import Draft
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

    from lowtide.metadata.store import KeyEvent, KeyValue, Revision
    from lowtide.metadata.unreadable_keys import UnreadableKeys


PARTITIONS_MAX: Final = 1_000_000
"""The most partitions in a topic's record: a partition's key has six digits."""


class TopicsImage(NamedTuple):
    """The topics of an image: by name, names by id, and partitions whose topic doesn't exist, by its id."""

    by_name: Mapping[str, TopicImage]
    names: Mapping[TopicId, str]
    loose: Mapping[TopicId, Mapping[int, PartitionImage]]


class TopicsChange:
    """Collects the changes of one revision. Copies a mapping only when it changes."""

    def __init__(self, old: TopicsImage, kept: TopicsImage, unreadable: UnreadableKeys) -> None:
        """`kept` is the previous state. `old` is empty instead when everything is read again."""
        self._kept = kept
        self._unreadable = unreadable
        self._topics = Draft(old.by_name)
        self._names = Draft(old.names)
        self._loose = Draft(old.loose)
        self._records: list[tuple[str, tuple[TopicId, int] | None, Revision]] = []
        """Name, id and number of partitions; None for a deleted topic."""
        self._configs: list[tuple[str, Mapping[str, str] | None, Revision]] = []
        self._partitions: dict[TopicId, dict[int, PartitionImage | None]] = {}
        """None stands for a deleted partition."""
        self.touched_names: dict[str, None] = {}
        """After `finish`: topics that may differ."""
        self.touched_numbers: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """The numbers of their changed or new partitions. May be incomplete for topics that did not exist before."""

    def apply(self, key: bytes, change: KeyValue | KeyEvent) -> bool:
        """Collects a change of a topic. Returns False for other keys. Errors: MetadataCorruptError."""
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
        """Keeps the known value of an unreadable key, or a harmless one. Returns whether it was known.

        Errors: ValueError if the key names nothing.
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
        """Applies all changes in an order in which each topic finds its partitions, and returns the topics.

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
        return TopicsImage(self._topics.now, self._names.now, self._loose.now)

    def _apply_partitions(self, topic_id: TopicId, changed: Mapping[int, PartitionImage | None]) -> None:
        """Changes partitions of a topic. Those beyond its partition count stay loose until its record raises that."""
        name = self._names.now.get(topic_id)
        topic = None if name is None else self._topics.now.get(name)
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
        """Keeps partitions that have no topic.

        Only the chunks of one creation share a mapping, and each is copied once per batch.
        """
        kept = dict(self._loose.now.get(topic_id, {}))
        for number, partition in changed.items():
            if partition is None:
                kept.pop(number, None)
            else:
                kept[number] = partition
        self._loose.put(topic_id, kept or None)

    def _gone(self, topic_id: TopicId, number: int, known: PartitionImage) -> PartitionImage:
        """Keeps the previous state of a topic's partition without a record; its next change writes it again."""
        self._unreadable.note(
            keys.partition(topic_id, number), ABSENT, "it is missing, and its topic is there", keeps=known.is_known
        )
        return msgspec.structs.replace(known, modify_revision=ABSENT)

    def _put_topic(self, name: str, topic_id: TopicId, count: int, revision: Revision) -> None:
        before = self._topics.now.get(name)
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
            self._names.put(topic_id, name)
        else:
            self.touched_numbers[name].update(dict.fromkeys(range(first, count)))
            topic = msgspec.structs.replace(
                before, partitions=before.partitions + tuple(added), modify_revision=revision
            )
        self._set_topic(topic)

    def _remove_topic(self, name: str) -> None:
        """Removes a topic. Its partitions are loose until their keys are deleted too."""
        topic = self._topics.edit().pop(name, None)
        self.touched_names[name] = None
        if topic is not None:
            self._unreadable.forget_under(keys.PARTITIONS + topic_id_text(topic.topic_id).encode())
            del self._names.edit()[topic.topic_id]
            kept = {number: state for number, state in enumerate(topic.partitions) if state.modify_revision != ABSENT}
            self._apply_loose(topic.topic_id, kept)

    def _apply_config(self, name: str, configs: Mapping[str, str] | None, revision: Revision) -> None:
        topic = self._topics.now.get(name)
        if topic is None:
            return
        if configs is None:
            self._set_topic(msgspec.structs.replace(topic, configs=NO_CONFIGS, config_revision=ABSENT))
        else:
            self._set_topic(msgspec.structs.replace(topic, configs=configs, config_revision=revision))

    def _take_loose(self, topic_id: TopicId, end: int) -> Mapping[int, PartitionImage]:
        """Takes the loose partitions of a topic with numbers below `end`. Others remain from an abandoned growth."""
        found = self._loose.edit().pop(topic_id, {})
        self._loose.put(topic_id, {number: each for number, each in found.items() if number >= end} or None)
        return {number: each for number, each in found.items() if number < end}

    def _set_topic(self, topic: TopicImage) -> None:
        self._topics.put(topic.name, topic)
        self.touched_names[topic.name] = None


def _topic_name(key: bytes, prefix: bytes) -> str:
    """Returns the topic's name, which has no separator. Errors: MetadataCorruptError, ValueError."""
    name = key.removeprefix(prefix).decode()
    if not name or "/" in name:
        raise MetadataCorruptError(f"{key.decode(errors='replace')} in the metadata store doesn't name a topic")
    return name


def _partition(key: bytes, value: bytes, change: KeyValue | KeyEvent) -> PartitionImage:
    record = decode(key, value, PartitionRecord)
    if len(record.isr) != len(record.isr_epochs):
        raise MetadataCorruptError(
            f"{key.decode()} in the metadata store has {len(record.isr)} ISR members, {len(record.isr_epochs)} epochs"
        )
    if len(record.elr) != len(record.elr_epochs):
        raise MetadataCorruptError(
            f"{key.decode()} in the metadata store has {len(record.elr)} ELR members, {len(record.elr_epochs)} epochs"
        )
    return partition_image(record, change.modify_revision)
