"""A broker's view of the cluster: an immutable picture of the metadata at one revision.

A broker acts on an image, never on the store. An image never changes, so it may be kept across a wait and compared with
the next one.

`image_change` builds the next image, `session` reads the store, `replication/controller` decides on changes.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from lowtide.metadata.acl_image import AclChangeImage, AclImage
from lowtide.metadata.broker_image import BrokerImage, Replicas, StaleMark
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.keys import TOPICS, is_acl
from lowtide.metadata.keys import topic as topic_key
from lowtide.metadata.records import ERASURES_LEVEL, NO_LEADER, FeaturesRecord, HistoryRecord, PartitionRecord
from lowtide.metadata.scram_image import NO_SCRAM, ScramImage
from lowtide.metadata.standing_image import StandingImage
from lowtide.metadata.token_image import TokenImage
from lowtide.metadata.unreadable_keys import Unreadable
from lowtide.protocol.types import BrokerEpoch, BrokerId, Offset, TopicId  # Offset is read at run time, by msgspec.

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowtide.metadata.store import Revision


Members: TypeAlias = "dict[BrokerId, BrokerEpoch]"
"""Replicas, with the registration under which each had everything committed."""

UNKNOWN_LEADER_EPOCH: Final = -1
"""Below the epoch of every log, so that no log appears older than the metadata."""

_RECORD_FIELDS: Final = PartitionRecord.__struct_fields__
_record_values: Final = attrgetter(*_RECORD_FIELDS)


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """One partition, with all fields of its `PartitionRecord`. A change compares `modify_revision`."""

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    isr_epochs: tuple[BrokerEpoch, ...]
    leader: BrokerId
    leader_epoch: int
    partition_epoch: int
    modify_revision: Revision
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    elr_epochs: tuple[BrokerEpoch, ...] = ()
    erasures_end: Offset = 0
    erasures_epoch: int = -1

    @property
    def is_known(self) -> bool:
        """Whether its record could ever be read; otherwise nothing may be decided about it (`unreadable_keys`)."""
        return bool(self.replicas)

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def members(self) -> Members:
        """The replicas with everything committed, unless they lost data since: in sync, or eligible as leaders."""
        return dict(zip((*self.elr, *self.isr), (*self.elr_epochs, *self.isr_epochs), strict=True))

    def changed(self, **fields: Any) -> PartitionRecord:
        """Returns the record that follows this state, with these fields changed and the next partition epoch.

        Every change of a partition uses this, so that no field of the record is forgotten.
        """
        kept = dict(zip(_RECORD_FIELDS, _record_values(self), strict=True))
        return PartitionRecord(**(kept | {"partition_epoch": self.partition_epoch + 1} | fields))


def unknown_partition(modify_revision: Revision) -> PartitionImage:
    """Returns a partition whose record could never be read."""
    return PartitionImage((), (), (), NO_LEADER, UNKNOWN_LEADER_EPOCH, 0, modify_revision)


def partition_image(record: PartitionRecord, modify_revision: Revision) -> PartitionImage:
    """Returns the state of a partition with this record."""
    return PartitionImage(
        **dict(zip(_RECORD_FIELDS, _record_values(record), strict=True)), modify_revision=modify_revision
    )


class TopicImage(msgspec.Struct, frozen=True):
    """A topic with all its partitions, by number. Changes of record and configuration compare the revisions."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    modify_revision: Revision
    config_revision: Revision = 0


class ImageDelta(msgspec.Struct, frozen=True):
    """The differences between an image and a newer one.

    A topic deleted and created again under its name is in `topics_deleted` and `topics_created`. `topics_changed` exist
    in both, with another partition or configuration. `brokers_changed` came, went, registered again or were
    unregistered, or have another shutdown state, other offline replicas or other marks. `broker_configs_changed` has
    the names of `MetadataImage.broker_configs`. Group configurations take effect where they are read.
    `partitions_changed` has the ascending numbers of changed partitions for those topics where they are known;
    `partitions_of` works for all.
    """

    topics_created: tuple[TopicImage, ...] = ()
    topics_deleted: tuple[TopicImage, ...] = ()
    topics_changed: tuple[TopicImage, ...] = ()
    brokers_changed: tuple[BrokerId, ...] = ()
    controller_changed: bool = False
    broker_configs_changed: tuple[str, ...] = ()
    partitions_changed: Mapping[str, tuple[int, ...]] = {}

    def partitions_of(self, before: TopicImage, topic: TopicImage) -> Iterable[int]:
        """Returns the ascending numbers of the partitions that differ from `before` or are new.

        A topic may have many thousands, of which a revision changes a few.
        """
        known = self.partitions_changed.get(topic.name)
        return different_partitions(before.partitions, topic.partitions) if known is None else known

    @property
    def is_empty(self) -> bool:
        return self == ImageDelta()


def different_partitions(before: Sequence[PartitionImage], now: Sequence[PartitionImage]) -> list[int]:
    """Returns the numbers of partitions that are other objects than before, or new; compares all of them."""
    same = min(len(before), len(now))
    return [number for number in range(same) if before[number] is not now[number]] + list(range(same, len(now)))


NO_CONFIGS: Mapping[str, str] = {}
KEEPING_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "retention.commitoffset.ms": "-1",
    "log.retention.min.timestamp": "0",
}
"""For a topic whose configuration can't be read: nothing is deleted or compacted."""
NO_FEATURES: Final = FeaturesRecord()
NO_HISTORY: Final = HistoryRecord()


class MetadataImage(msgspec.Struct, frozen=True):
    """The cluster at `revision`. The mappings must not be changed.

    `controller_id` is -1 without a controller; `controller_revision` is its fence. `loose_partitions`, by topic id, are
    those whose topic doesn't exist (yet, or any more). `broker_configs` has dynamic configurations by a broker's id in
    decimal, and under the empty name the one for all brokers. `shutdowns`, `offline_replicas`, `stale_marks` and
    `unclean_starts` describe brokers (`broker_image`); use the methods instead. `known_brokers` are the last
    registrations of all brokers that were not unregistered. `group_configs` are by group id, `client_quotas` by the
    text of user, client id and address, `client_metrics` by subscription name. `deleted_topics` has deleted topic ids,
    at least the newest, with the revision of the deletion. `suspension` is why no broker may act on these metadata;
    empty if all may. `acls` has the access control rules, `tokens` the delegation tokens, by key, and `standing` the
    standing erasures, by erasure id; each is a new mapping when one changes. `acl_change` is a large change that `acls`
    already includes, and whose rules are still to be written. `unreadable` has the keys that can't be read.
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
    acls: Mapping[bytes, AclImage] = {}
    client_quotas: Mapping[str, ConfigImage] = {}
    scram: ScramImage = NO_SCRAM
    acl_change: AclChangeImage | None = None
    tokens: Mapping[bytes, TokenImage] = {}
    client_metrics: Mapping[str, ConfigImage] = {}
    unclean_starts: Mapping[BrokerId, BrokerEpoch] = {}
    standing: Mapping[bytes, StandingImage] = {}
    unreadable: Mapping[bytes, Unreadable] = {}

    @property
    def hides_rules(self) -> bool:
        """Whether an access control rule can't be read: it may be one that denies."""
        return any(not each.keeps and is_acl(key) for key, each in self.unreadable.items())

    def hides_topic(self, name: str) -> bool:
        """Returns whether a topic of this name exists but can't be read: its logs must stay untouched."""
        return bool(self.unreadable) and name not in self.topics and topic_key(name) in self.unreadable

    @property
    def hides_topics(self) -> bool:
        """Whether any topic can't be read: partitions without a topic may belong to it."""
        names = (key.removeprefix(TOPICS).decode(errors="replace") for key in self.unreadable if key.startswith(TOPICS))
        return any(self.hides_topic(name) for name in names)

    def earlier_partitions(self, topic: TopicImage) -> tuple[PartitionImage, ...]:
        """Returns this image's partitions of a topic of another image.

        Empty if the topic is the same object, or its configuration isn't.
        """
        known = self.topics.get(topic.name)
        if known is None or known is topic or known.topic_id != topic.topic_id or known.configs is not topic.configs:
            return ()
        return known.partitions

    def topic_by_id(self, topic_id: TopicId) -> TopicImage | None:
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def broker_epoch(self, broker_id: BrokerId) -> BrokerEpoch | None:
        """Returns the registration of a broker, or None if it isn't registered and must be fenced."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.epoch

    def is_known(self, broker_id: BrokerId) -> bool:
        """Returns whether the broker exists, alive or not."""
        return broker_id in self.brokers or broker_id in self.known_brokers

    @property
    def fenced_brokers(self) -> dict[BrokerId, BrokerImage]:
        """The known brokers that aren't alive, by ascending id."""
        return {
            broker_id: broker
            for broker_id, broker in sorted(self.known_brokers.items())
            if broker_id not in self.brokers
        }

    def replica_is_online(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> bool:
        """Returns whether a replica's broker is registered and its log directory works."""
        if broker_id not in self.brokers:
            return False
        offline = self.offline_replicas.get(broker_id)
        return offline is None or number not in offline.get(topic_id, ())

    def may_be_in_sync(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> bool:
        """Returns whether a replica may join an ISR or be elected: it is online and its broker isn't about to stop."""
        broker = self.brokers.get(broker_id)
        return (
            broker is not None
            and not broker.in_controlled_shutdown
            and self.replica_is_online(broker_id, topic_id, number)
        )

    def is_stale(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: BrokerEpoch) -> bool:
        """Returns whether a replica has lost data since it joined under `member_epoch` (rule DR8)."""
        marks = self.stale_marks.get(broker_id)
        if marks is None:
            return False
        return any(member_epoch < mark.revision and mark.covers(topic_id, number) for mark in marks)

    def may_lack_records(self, broker_id: BrokerId, member_epoch: BrokerEpoch) -> bool:
        """Returns whether a broker has lost power, and so unsynced data, since `member_epoch` (KIP-966)."""
        return member_epoch < self.unclean_starts.get(broker_id, 0)

    def has_all(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: BrokerEpoch) -> bool:
        """Returns whether a replica, online or not, still has everything committed that it had under `member_epoch`.

        An unregistered broker is gone for good. Elections and recoveries use this rule.
        """
        if not self.is_known(broker_id) or self.is_stale(broker_id, topic_id, number, member_epoch):
            return False
        return not self.may_lack_records(broker_id, member_epoch)

    @property
    def log_start_reporting(self) -> bool:
        """Whether all brokers report their log starts when they fetch; once true it stays true."""
        return self.features.log_start_reporting >= 1

    @property
    def erases_records(self) -> bool:
        """Whether all brokers apply erasures of single records; once true it stays true."""
        return self.features.required_level >= ERASURES_LEVEL

    @property
    def has_eligible_leaders(self) -> bool:
        """Whether partitions have eligible leader replicas (KIP-966); once true it stays true."""
        return self.features.eligible_leaders >= 1
