"""The cluster as a broker sees it: an immutable picture of the metadata at one revision.

A broker acts on an image, never on the store, and gets from one image to the next by applying whole batches: what belongs together
changes together. Nothing that was handed out changes, so an image may be kept over a wait and compared with the next one.

Guards: the revision never falls; a topic is visible only with all its partitions; a partition without its topic is invisible.
Does not do: reading the store (`session`), deciding what should be (`replication/controller`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.broker_image import BrokerImage, BrokersChange, BrokersImage, Replicas, StaleMark
from lowtide.metadata.records import (
    NO_LEADER,
    ControllerRecord,
    FeaturesRecord,
    HistoryRecord,
    MetadataCorruptError,
    PartitionRecord,
    SuspensionRecord,
    TopicRecord,
    decode,
)
from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId, parse_topic_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowtide.metadata.store import Batch, Event, KeyValue, Revision

    _Change = tuple[bytes, KeyValue | Event]
    _SortedChanges = tuple[list[_Change], list[_Change], dict[TopicId, dict[int, "PartitionImage | None"]]]


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """One partition; see `PartitionRecord`. `modify_revision` is what a change of it must compare with."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    isr_epochs: tuple[BrokerEpoch, ...]
    leader: BrokerId
    leader_epoch: int
    partition_epoch: int
    modify_revision: Revision
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def has_leader(self) -> bool:
        """Whether a broker leads it."""
        return self.leader != NO_LEADER


class TopicImage(msgspec.Struct, frozen=True):
    """A topic with all its partitions, by number. The revisions are what changes of the record and of the configuration compare with."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    modify_revision: Revision
    config_revision: Revision = 0


class ConfigImage(msgspec.Struct, frozen=True):
    """What was set on one broker, or on all of them. `revision` is what a change of it must compare with, 0 while nothing is set."""

    configs: Mapping[str, str] = {}
    revision: Revision = 0


NOTHING_SET = ConfigImage()


class ImageDelta(msgspec.Struct, frozen=True):
    """What is different in a newer image. A topic deleted and created again under its name is in `topics_deleted` and `topics_created`.

    `topics_changed` are topics that were and are, with another partition or configuration. `brokers_changed` are those that came, went or
    registered again, and those with another wish to stop, other offline replicas or other marks, or that were unregistered.
    `broker_configs_changed` are names as in `MetadataImage.broker_configs`. What is set on groups takes effect where it is looked up.
    """

    topics_created: tuple[TopicImage, ...] = ()
    topics_deleted: tuple[TopicImage, ...] = ()
    topics_changed: tuple[TopicImage, ...] = ()
    brokers_changed: tuple[BrokerId, ...] = ()
    controller_changed: bool = False
    broker_configs_changed: tuple[str, ...] = ()
    features_changed: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing that an image shows is different."""
        return self == ImageDelta()


NO_CONFIGS: Mapping[str, str] = {}
NO_FEATURES: Final = FeaturesRecord()
NO_HISTORY: Final = HistoryRecord()


class MetadataImage(msgspec.Struct, frozen=True):
    """The cluster at `revision`.

    `controller_id` is -1 without a controller; `controller_revision` is its fence. `loose_partitions` are those whose topic doesn't
    exist (yet, or any more), by topic id. `broker_configs` has what was set on brokers while they run, by a broker's id in decimal, and
    under the empty name what was set on all of them. `shutdowns`, `offline_replicas` and `stale_marks` tell more of brokers, by their ids
    (`broker_image`); ask the methods instead. `known_brokers` are all that ever registered and weren't unregistered, as they registered
    last. `group_configs` has what is set on groups, by their ids. `deleted_topics` are topic ids that were deleted, the newest of them at
    least, with the revision of the deletion. `suspension` says why no broker may act on these metadata; it is empty while all may. The
    mappings must not be changed.
    """

    revision: Revision = 0
    cluster_id: str = ""
    controller_id: BrokerId = -1
    controller_revision: Revision = 0
    brokers: Mapping[BrokerId, BrokerImage] = {}
    topics: Mapping[str, TopicImage] = {}
    topic_names: Mapping[TopicId, str] = {}
    loose_partitions: Mapping[TopicId, Mapping[int, PartitionImage]] = {}
    broker_configs: Mapping[str, ConfigImage] = {}
    shutdowns: Mapping[BrokerId, BrokerEpoch] = {}
    offline_replicas: Mapping[BrokerId, Replicas] = {}
    stale_marks: Mapping[BrokerId, tuple[StaleMark, ...]] = {}
    features: FeaturesRecord = NO_FEATURES
    features_revision: Revision = 0
    known_brokers: Mapping[BrokerId, BrokerImage] = {}
    group_configs: Mapping[str, ConfigImage] = {}
    deleted_topics: Mapping[TopicId, Revision] = {}
    history: HistoryRecord = NO_HISTORY
    suspension: str = ""

    @classmethod
    def load(cls, pairs: Iterable[KeyValue], revision: Revision, *, prefix: bytes) -> MetadataImage:
        """The image of a whole range, as read at `revision`. Errors: MetadataCorruptError."""
        change = _ImageChange(cls())
        change.apply([(pair.key.removeprefix(prefix), pair) for pair in pairs])
        return change.finish(revision)

    def apply(self, batch: Batch, *, prefix: bytes) -> tuple[MetadataImage, ImageDelta]:
        """The image after `batch`, and what became different. Errors: MetadataCorruptError."""
        assert batch.revision > self.revision, f"batch {batch.revision} on an image of {self.revision}"
        change = _ImageChange(self)
        change.apply([(event.key.removeprefix(prefix), event) for event in batch.events])
        image = change.finish(batch.revision)
        return image, difference(self, image, names=change.touched_names, broker_ids=change.brokers.touched)

    def earlier_partitions(self, topic: TopicImage) -> tuple[PartitionImage, ...]:
        """The partitions of a topic of another image, as they are here; none where the topic is the same, or its configuration isn't."""
        known = self.topics.get(topic.name)
        if known is None or known is topic or known.topic_id != topic.topic_id or known.configs is not topic.configs:
            return ()
        return known.partitions

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        """The topic with this id, or None."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def broker_epoch(self, broker_id: BrokerId) -> BrokerEpoch | None:
        """The registration of a broker, or None for one that isn't registered, which is to be fenced."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.epoch

    def is_known(self, broker_id: BrokerId) -> bool:
        """Whether there is such a broker, alive or not."""
        return broker_id in self.brokers or broker_id in self.known_brokers

    @property
    def fenced_brokers(self) -> dict[BrokerId, BrokerImage]:
        """The known brokers that aren't alive, by ascending id."""
        return {broker_id: broker for broker_id, broker in sorted(self.known_brokers.items()) if broker_id not in self.brokers}

    def replica_is_online(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> bool:
        """Whether a replica's broker is registered, and its log directory works."""
        if broker_id not in self.brokers:
            return False
        offline = self.offline_replicas.get(broker_id)
        return offline is None or number not in offline.get(topic_id, ())

    def may_be_in_sync(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> bool:
        """Whether a replica is online and its broker isn't about to stop: only such a one is to join an ISR, or to be elected."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.in_controlled_shutdown and self.replica_is_online(broker_id, topic_id, number)

    def is_stale(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: BrokerEpoch) -> bool:
        """Whether a replica, in the ISR since the registration `member_epoch`, has lost since then what it had (rule DR8)."""
        marks = self.stale_marks.get(broker_id)
        if marks is None:
            return False
        return any(member_epoch < mark.revision and number in mark.replicas.get(topic_id, ()) for mark in marks)

    @property
    def log_start_reporting(self) -> bool:
        """Whether all brokers tell their log starts when they fetch; it stays so once it is."""
        return self.features.log_start_reporting >= 1


def difference(
    old: MetadataImage,
    new: MetadataImage,
    *,
    names: Iterable[str] | None = None,
    broker_ids: Iterable[BrokerId] | None = None,
) -> ImageDelta:
    """What is different in `new`, of these topics and brokers, or of all."""
    names = dict.fromkeys([*old.topics, *new.topics]) if names is None else names
    if broker_ids is None:
        named = (
            each for image in (old, new) for each in (*image.brokers, *image.offline_replicas, *image.stale_marks, *image.known_brokers)
        )
        broker_ids = dict.fromkeys(named)
    created, deleted, changed = [], [], []
    for name in names:
        before, after = old.topics.get(name), new.topics.get(name)
        if before is not None and after is not None and before.topic_id == after.topic_id:
            if before is not after and before != after:
                changed.append(after)
            continue
        if before is not None:
            deleted.append(before)
        if after is not None:
            created.append(after)
    return ImageDelta(
        tuple(created),
        tuple(deleted),
        tuple(changed),
        tuple(broker_id for broker_id in broker_ids if _broker_differs(old, new, broker_id)),
        (old.controller_id, old.controller_revision) != (new.controller_id, new.controller_revision),
        _changed_configs(old.broker_configs, new.broker_configs),
        old.features != new.features,
    )


def _broker_differs(old: MetadataImage, new: MetadataImage, broker_id: BrokerId) -> bool:
    return (
        old.brokers.get(broker_id) != new.brokers.get(broker_id)
        or old.offline_replicas.get(broker_id) != new.offline_replicas.get(broker_id)
        or old.stale_marks.get(broker_id) != new.stale_marks.get(broker_id)
        or old.known_brokers.get(broker_id) != new.known_brokers.get(broker_id)
    )


def _changed_configs(old: Mapping[str, ConfigImage], new: Mapping[str, ConfigImage]) -> tuple[str, ...]:
    if old is new:
        return ()
    return tuple(name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name))


def _take_over(configs: dict[str, ConfigImage], name: str, key: bytes, change: KeyValue | Event) -> None:
    """Change what is set under a name."""
    if change.value is None:
        configs.pop(name, None)
    else:
        configs[name] = ConfigImage(decode(key, change.value, dict[str, str]), change.modify_revision)


class _ImageChange:
    """One step from an image to the next. Copies a mapping at most once, and only if it changes."""

    def __init__(self, image: MetadataImage) -> None:
        self._old = image
        self._cluster_id = image.cluster_id
        self._controller = (image.controller_id, image.controller_revision)
        self._features = (image.features, image.features_revision)
        self._history, self._suspension = image.history, image.suspension
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[TopicId, str] | None = None
        self._loose: dict[TopicId, Mapping[int, PartitionImage]] | None = None
        self._broker_configs: dict[str, ConfigImage] | None = None
        self._group_configs: dict[str, ConfigImage] | None = None
        self._deleted_topics: dict[TopicId, Revision] | None = None
        self.touched_names: dict[str, None] = {}
        seen = BrokersImage(image.brokers, image.shutdowns, image.offline_replicas, image.stale_marks, image.known_brokers)
        self.brokers = BrokersChange(seen)

    def apply(self, changes: Sequence[tuple[bytes, KeyValue | Event]]) -> None:
        """Take over the changes of one revision, in an order in which a topic finds its partitions whatever theirs was."""
        topics, configs, partitions = self._sort(changes)
        for key, change in topics:
            if change.value is None:
                self._remove_topic(key)
        for topic_id, changed in partitions.items():
            self._apply_partitions(topic_id, changed)
        for key, change in topics:
            if change.value is not None:
                self._put_topic(key, change.value, change)
        for key, change in configs:
            self._apply_config(key, change)

    def _sort(self, changes: Sequence[tuple[bytes, KeyValue | Event]]) -> _SortedChanges:
        """Set aside what depends on each other, and apply the rest. A partition that is deleted stands as None."""
        topics: list[tuple[bytes, KeyValue | Event]] = []
        configs: list[tuple[bytes, KeyValue | Event]] = []
        partitions: dict[TopicId, dict[int, PartitionImage | None]] = {}
        for key, change in changes:
            if key.startswith(keys.PARTITIONS):
                topic_id, number = keys.parse_partition(key)
                partitions.setdefault(topic_id, {})[number] = None if change.value is None else _partition(key, change.value, change)
            elif key.startswith(keys.TOPICS):
                topics.append((key, change))
            elif key.startswith(keys.TOPIC_CONFIGS):
                configs.append((key, change))
            else:
                self._apply_other(key, change)
        return topics, configs, partitions

    def finish(self, revision: Revision) -> MetadataImage:
        """The new image."""
        old = self._old
        brokers = self.brokers.finish()
        return MetadataImage(
            revision,
            self._cluster_id,
            *self._controller,
            brokers.alive,
            old.topics if self._topics is None else self._topics,
            old.topic_names if self._topic_names is None else self._topic_names,
            old.loose_partitions if self._loose is None else self._loose,
            old.broker_configs if self._broker_configs is None else self._broker_configs,
            brokers.shutdowns,
            brokers.offline_replicas,
            brokers.stale_marks,
            *self._features,
            brokers.known,
            old.group_configs if self._group_configs is None else self._group_configs,
            old.deleted_topics if self._deleted_topics is None else self._deleted_topics,
            self._history,
            self._suspension,
        )

    def _apply_other(self, key: bytes, change: KeyValue | Event) -> None:
        value = change.value
        if self.brokers.apply(key, change):
            return
        if key == keys.CONTROLLER:
            self._controller = (NO_LEADER, 0) if value is None else (decode(key, value, ControllerRecord).broker_id, change.create_revision)
        elif key == keys.CLUSTER_ID and value is not None:
            self._cluster_id = value.decode()
        elif key.startswith(keys.BROKER_CONFIGS):
            if self._broker_configs is None:
                self._broker_configs = dict(self._old.broker_configs)
            _take_over(self._broker_configs, keys.parse_broker_config(key), key, change)
        elif key.startswith(keys.GROUP_CONFIGS):
            if self._group_configs is None:
                self._group_configs = dict(self._old.group_configs)
            _take_over(self._group_configs, keys.parse_group_config(key), key, change)
        elif key.startswith(keys.DELETED_TOPICS):
            self._apply_tombstone(key, change)
        elif key == keys.FEATURES:
            self._features = (NO_FEATURES, 0) if value is None else (decode(key, value, FeaturesRecord), change.modify_revision)
        elif key == keys.HISTORY:
            self._history = NO_HISTORY if value is None else decode(key, value, HistoryRecord)
        elif key == keys.SUSPENSION:
            self._suspension = "" if value is None else decode(key, value, SuspensionRecord).reason

    def _apply_tombstone(self, key: bytes, change: KeyValue | Event) -> None:
        if self._deleted_topics is None:
            self._deleted_topics = dict(self._old.deleted_topics)
        if change.value is None:
            self._deleted_topics.pop(keys.parse_deleted_topic(key), None)
        else:
            self._deleted_topics[keys.parse_deleted_topic(key)] = change.modify_revision

    def _apply_partitions(self, topic_id: TopicId, changed: Mapping[int, PartitionImage | None]) -> None:
        """Change the partitions of a topic. Those beyond its count stay loose until its record counts them."""
        name = (self._old.topic_names if self._topic_names is None else self._topic_names).get(topic_id)
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
        if len(loose) < len(changed):
            self._set_topic(msgspec.structs.replace(topic, partitions=tuple(partitions)))
        if loose:
            self._apply_loose(topic_id, loose)

    def _apply_loose(self, topic_id: TopicId, changed: Mapping[int, PartitionImage | None]) -> None:
        """Keep partitions that have no topic. Only the chunks of one creation share a mapping, and each is copied once per batch."""
        if self._loose is None:
            self._loose = dict(self._old.loose_partitions)
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
        return (self._old.topics if self._topics is None else self._topics).get(name)

    def _topics_to_change(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._old.topics)
        return self._topics

    def _names_to_change(self) -> dict[TopicId, str]:
        if self._topic_names is None:
            self._topic_names = dict(self._old.topic_names)
        return self._topic_names

    def _take_loose(self, topic_id: TopicId, end: int) -> Mapping[int, PartitionImage]:
        """The loose partitions of a topic with numbers below `end`. Others stay: an attempt to add more was given up."""
        if self._loose is None:
            self._loose = dict(self._old.loose_partitions)
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
    return PartitionImage(
        record.replicas,
        record.isr,
        record.isr_epochs,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        change.modify_revision,
        record.adding,
        record.removing,
    )
