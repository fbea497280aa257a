"""The cluster as a broker sees it: an immutable picture of the metadata at one revision.

A broker acts on an image, never on the store. Nothing that was handed out changes, so an image may be kept over a wait
and compared with the next one.

Does not: get from one image to the next (`image_change`), read the store (`session`), decide what should be
(`replication/controller`).
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
from lowtide.metadata.records import NO_LEADER, FeaturesRecord, HistoryRecord, PartitionRecord
from lowtide.metadata.scram_image import NO_SCRAM, ScramImage
from lowtide.metadata.token_image import TokenImage
from lowtide.metadata.unreadable_keys import Unreadable
from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowtide.metadata.store import Revision


Members: TypeAlias = "dict[BrokerId, BrokerEpoch]"
"""Replicas, with the registration under which each had all that was committed."""

UNKNOWN_LEADER_EPOCH: Final = -1
"""Below that of every log, so that no log is found to be older than the metadata."""

_RECORD_FIELDS: Final = PartitionRecord.__struct_fields__
_record_values: Final = attrgetter(*_RECORD_FIELDS)


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """One partition: all that is in its `PartitionRecord`.

    `modify_revision` is what a change of it must compare with.
    """

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

    @property
    def is_known(self) -> bool:
        """Whether its record could be read, now or before; else nothing may be decided about it (`unreadable_keys`)."""
        return bool(self.replicas)

    @property
    def has_leader(self) -> bool:
        """Whether a broker leads it."""
        return self.leader != NO_LEADER

    @property
    def members(self) -> Members:
        """The replicas that have all that was committed, as far as they have lost nothing since: in sync, or eligible as leaders."""
        return dict(zip((*self.elr, *self.isr), (*self.elr_epochs, *self.isr_epochs), strict=True))

    def changed(self, **fields: Any) -> PartitionRecord:
        """The record that follows this state, with these fields changed.

        Everything else stays, and the partition epoch is one more.
        Every change of a partition is made here, so that a field that is added to the record is forgotten by none.
        """
        kept = dict(zip(_RECORD_FIELDS, _record_values(self), strict=True))
        return PartitionRecord(**(kept | {"partition_epoch": self.partition_epoch + 1} | fields))


def unknown_partition(modify_revision: Revision) -> PartitionImage:
    """A partition whose record can't be read, and never could."""
    return PartitionImage((), (), (), NO_LEADER, UNKNOWN_LEADER_EPOCH, 0, modify_revision)


def partition_image(record: PartitionRecord, modify_revision: Revision) -> PartitionImage:
    """The state of a partition that has this record."""
    return PartitionImage(
        **dict(zip(_RECORD_FIELDS, _record_values(record), strict=True)), modify_revision=modify_revision
    )


class TopicImage(msgspec.Struct, frozen=True):
    """A topic with all its partitions, by number.

    The revisions are what changes of the record and of the configuration compare with.
    """

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    modify_revision: Revision
    config_revision: Revision = 0


class ImageDelta(msgspec.Struct, frozen=True):
    """What is different in a newer image.

    A topic deleted and created again under its name is in `topics_deleted` and `topics_created`.
    `topics_changed` are topics that were and are, with another partition or configuration. `brokers_changed` are those that came, went or
    registered again, and those with another wish to stop, other offline replicas or other marks, or that were
    unregistered.
    `broker_configs_changed` are names as in `MetadataImage.broker_configs`. What is set on groups takes effect where it is looked up.
    `partitions_changed` has, of each topic of `topics_changed` of which that is known, the numbers of the partitions that are others than
    in the image before, ascending: `partitions_of` has them in any case.
    """

    topics_created: tuple[TopicImage, ...] = ()
    topics_deleted: tuple[TopicImage, ...] = ()
    topics_changed: tuple[TopicImage, ...] = ()
    brokers_changed: tuple[BrokerId, ...] = ()
    controller_changed: bool = False
    broker_configs_changed: tuple[str, ...] = ()
    features_changed: bool = False
    partitions_changed: Mapping[str, tuple[int, ...]] = {}

    def partitions_of(self, before: TopicImage, topic: TopicImage) -> Iterable[int]:
        """The numbers of a changed topic's partitions that are others than in `before`, as it was, or that are new; ascending.

        A topic may have many thousand, of which a revision changes a few.
        """
        known = self.partitions_changed.get(topic.name)
        return different_partitions(before.partitions, topic.partitions) if known is None else known

    @property
    def is_empty(self) -> bool:
        """Whether nothing that an image shows is different."""
        return self == ImageDelta()


def different_partitions(before: Sequence[PartitionImage], now: Sequence[PartitionImage]) -> list[int]:
    """The numbers of partitions that are other objects than before, or new; looks at all of them."""
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
"""Of a topic whose configuration can't be read: nothing is deleted or compacted."""
NO_FEATURES: Final = FeaturesRecord()
NO_HISTORY: Final = HistoryRecord()


class MetadataImage(msgspec.Struct, frozen=True):
    """The cluster at `revision`.

    `controller_id` is -1 without a controller; `controller_revision` is its fence. `loose_partitions` are those whose topic doesn't
    exist (yet, or any more), by topic id. `broker_configs` has what was set on brokers while they run, by a broker's id
    in decimal, and under the empty name what was set on all of them. `shutdowns`, `offline_replicas`, `stale_marks` and
    `unclean_starts` tell more of brokers, by their ids (`broker_image`); ask the methods instead. `known_brokers` are
    all that ever registered and weren't unregistered, as they registered last. `group_configs` has what is set on
    groups, by their ids, `client_quotas` the quotas of users, clients and addresses, by their texts, `client_metrics`
    the subscriptions to clients' metrics, by their names. `deleted_topics` are topic ids that were deleted, the newest
    of them at least, with the revision of the deletion. `suspension` says why no broker may act on these metadata; it
    is empty while all may. `acls` has the rules of access control by their keys; it is another mapping whenever one
    changed, and so are `tokens`, the delegation tokens. `acl_change` is a change of many rules that `acls` shows
    already, and that is still to be written rule by rule. `unreadable` has the keys that are not understood. The
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
    acls: Mapping[bytes, AclImage] = {}
    client_quotas: Mapping[str, ConfigImage] = {}
    scram: ScramImage = NO_SCRAM
    acl_change: AclChangeImage | None = None
    tokens: Mapping[bytes, TokenImage] = {}
    client_metrics: Mapping[str, ConfigImage] = {}
    unclean_starts: Mapping[BrokerId, BrokerEpoch] = {}
    unreadable: Mapping[bytes, Unreadable] = {}

    @property
    def hides_rules(self) -> bool:
        """Whether a rule of access control is not known: it may be one that denies."""
        return any(not each.keeps and is_acl(key) for key, each in self.unreadable.items())

    def hides_topic(self, name: str) -> bool:
        """Whether there is a topic of this name that can't be read: nothing may be done with its logs."""
        return bool(self.unreadable) and name not in self.topics and topic_key(name) in self.unreadable

    @property
    def hides_topics(self) -> bool:
        """Whether any topic can't be read: partitions that seem to be of no topic may be its."""
        names = (key.removeprefix(TOPICS).decode(errors="replace") for key in self.unreadable if key.startswith(TOPICS))
        return any(self.hides_topic(name) for name in names)

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
        return {
            broker_id: broker
            for broker_id, broker in sorted(self.known_brokers.items())
            if broker_id not in self.brokers
        }

    def replica_is_online(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> bool:
        """Whether a replica's broker is registered, and its log directory works."""
        if broker_id not in self.brokers:
            return False
        offline = self.offline_replicas.get(broker_id)
        return offline is None or number not in offline.get(topic_id, ())

    def may_be_in_sync(self, broker_id: BrokerId, topic_id: TopicId, number: int) -> bool:
        """Whether a replica is online and its broker isn't about to stop: only such a one is to join an ISR, or to be elected."""
        broker = self.brokers.get(broker_id)
        return (
            broker is not None
            and not broker.in_controlled_shutdown
            and self.replica_is_online(broker_id, topic_id, number)
        )

    def is_stale(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: BrokerEpoch) -> bool:
        """Whether a replica, in the ISR since the registration `member_epoch`, has lost since then what it had (rule DR8)."""
        marks = self.stale_marks.get(broker_id)
        if marks is None:
            return False
        return any(member_epoch < mark.revision and mark.covers(topic_id, number) for mark in marks)

    def may_lack_records(self, broker_id: BrokerId, member_epoch: BrokerEpoch) -> bool:
        """Whether a broker has lost its power, and with it what it had not synced, since the registration `member_epoch` (KIP-966)."""
        return member_epoch < self.unclean_starts.get(broker_id, 0)

    def has_all(self, broker_id: BrokerId, topic_id: TopicId, number: int, member_epoch: BrokerEpoch) -> bool:
        """Whether a replica, there or not, has all that was committed: one that had it under the registration `member_epoch`.

        A broker that was unregistered is gone for good. Elections and recoveries go by this rule.
        """
        if not self.is_known(broker_id) or self.is_stale(broker_id, topic_id, number, member_epoch):
            return False
        return not self.may_lack_records(broker_id, member_epoch)

    @property
    def log_start_reporting(self) -> bool:
        """Whether all brokers tell their log starts when they fetch; it stays so once it is."""
        return self.features.log_start_reporting >= 1

    @property
    def has_eligible_leaders(self) -> bool:
        """Whether partitions have eligible leader replicas (KIP-966); it stays so once it is."""
        return self.features.eligible_leaders >= 1
