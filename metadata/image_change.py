"""From one image to the next: the changes of one revision, and what is different after them.

Guards: the revision never falls; what belongs together changes together, because a revision is applied as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.acl_image import AclImage, take_over_acl, take_over_change
from lowtide.metadata.broker_image import BrokersChange, BrokersImage
from lowtide.metadata.config_image import ConfigImage, changed_configs, take_over
from lowtide.metadata.image import NO_FEATURES, NO_HISTORY, ImageDelta, MetadataImage
from lowtide.metadata.records import NO_LEADER, ControllerRecord, FeaturesRecord, HistoryRecord, SuspensionRecord, decode
from lowtide.metadata.scram_image import ScramChange
from lowtide.metadata.token_image import TokenImage, take_over_token
from lowtide.metadata.topics_change import TopicsChange, TopicsImage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.metadata.store import Batch, Event, KeyValue, Revision
    from lowtide.protocol.types import BrokerId, TopicId


def load_image(pairs: Iterable[KeyValue], revision: Revision, *, prefix: bytes) -> MetadataImage:
    """The image of a whole range, as read at `revision`. Errors: MetadataCorruptError."""
    change = _ImageChange(MetadataImage())
    for pair in pairs:
        change.apply(pair.key.removeprefix(prefix), pair)
    return change.finish(revision)


def apply_batch(image: MetadataImage, batch: Batch, *, prefix: bytes) -> tuple[MetadataImage, ImageDelta]:
    """The image after `batch`, and what became different. Errors: MetadataCorruptError."""
    assert batch.revision > image.revision, f"batch {batch.revision} on an image of {image.revision}"
    change = _ImageChange(image)
    for event in batch.events:
        change.apply(event.key.removeprefix(prefix), event)
    following = change.finish(batch.revision)
    delta = difference(image, following, names=change.topics.touched_names, broker_ids=change.brokers.touched)
    if not delta.topics_changed:
        return following, delta
    numbers = {topic.name: tuple(sorted(change.topics.touched_numbers[topic.name])) for topic in delta.topics_changed}
    return following, msgspec.structs.replace(delta, partitions_changed=numbers)


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
            each
            for image in (old, new)
            for each in (*image.brokers, *image.offline_replicas, *image.stale_marks, *image.known_brokers, *image.unclean_starts)
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
        changed_configs(old.broker_configs, new.broker_configs),
        old.features != new.features,
    )


def _broker_differs(old: MetadataImage, new: MetadataImage, broker_id: BrokerId) -> bool:
    return (
        old.brokers.get(broker_id) != new.brokers.get(broker_id)
        or old.offline_replicas.get(broker_id) != new.offline_replicas.get(broker_id)
        or old.stale_marks.get(broker_id) != new.stale_marks.get(broker_id)
        or old.known_brokers.get(broker_id) != new.known_brokers.get(broker_id)
        or old.unclean_starts.get(broker_id) != new.unclean_starts.get(broker_id)
    )


_SETTINGS: Final = (
    (keys.BROKER_CONFIGS, "broker_configs", keys.parse_broker_config),
    (keys.GROUP_CONFIGS, "group_configs", keys.parse_group_config),
    (keys.CLIENT_QUOTAS, "client_quotas", keys.parse_client_quotas),
    (keys.CLIENT_METRICS, "client_metrics", keys.parse_client_metrics),
)
"""What was set on something by its name: what the keys begin with, the image's field, and from a key to the name."""


class _ImageChange:
    """The changes of one revision. Copies a mapping at most once, and only if it changes."""

    def __init__(self, image: MetadataImage) -> None:
        self._old = image
        self._cluster_id = image.cluster_id
        self._controller = (image.controller_id, image.controller_revision)
        self._features = (image.features, image.features_revision)
        self._history, self._suspension = image.history, image.suspension
        self._set: dict[str, dict[str, ConfigImage]] = {}
        """The mappings of `_SETTINGS` that change, by their fields."""
        self._deleted_topics: dict[TopicId, Revision] | None = None
        self._acls: dict[bytes, AclImage] | None = None
        self._acl_change = image.acl_change
        self._tokens: dict[bytes, TokenImage] | None = None
        self._scram = ScramChange(image.scram)
        self.topics = TopicsChange(TopicsImage(image.topics, image.topic_names, image.loose_partitions))
        seen = BrokersImage(
            image.brokers, image.shutdowns, image.offline_replicas, image.stale_marks, image.known_brokers, image.unclean_starts
        )
        self.brokers = BrokersChange(seen)

    def apply(self, key: bytes, change: KeyValue | Event) -> None:
        """Take over one change. Errors: MetadataCorruptError."""
        if not (self.topics.apply(key, change) or self.brokers.apply(key, change) or self._apply_setting(key, change)):
            self._apply_other(key, change)

    def finish(self, revision: Revision) -> MetadataImage:
        """The new image."""
        old = self._old
        if self._acl_change is not None and self._acl_change is not old.acl_change:
            self._acl_change.put_in_force(self._rules())
        topics, brokers = self.topics.finish(), self.brokers.finish()
        return MetadataImage(
            revision,
            self._cluster_id,
            *self._controller,
            brokers.alive,
            topics.by_name,
            topics.names,
            topics.loose,
            self._set.get("broker_configs", old.broker_configs),
            brokers.shutdowns,
            brokers.offline_replicas,
            brokers.stale_marks,
            *self._features,
            brokers.known,
            self._set.get("group_configs", old.group_configs),
            old.deleted_topics if self._deleted_topics is None else self._deleted_topics,
            self._history,
            self._suspension,
            old.acls if self._acls is None else self._acls,
            self._set.get("client_quotas", old.client_quotas),
            self._scram.finish(),
            self._acl_change,
            old.tokens if self._tokens is None else self._tokens,
            self._set.get("client_metrics", old.client_metrics),
            brokers.unclean_starts,
        )

    def _rules(self) -> dict[bytes, AclImage]:
        """The rules, to be changed."""
        if self._acls is None:
            self._acls = dict(self._old.acls)
        return self._acls

    def _apply_other(self, key: bytes, change: KeyValue | Event) -> None:
        value = change.value
        if key == keys.CONTROLLER:
            self._controller = (NO_LEADER, 0) if value is None else (decode(key, value, ControllerRecord).broker_id, change.create_revision)
        elif key == keys.CLUSTER_ID and value is not None:
            self._cluster_id = value.decode()
        elif key.startswith(keys.SCRAM):
            self._scram.apply(key, change)
        elif key.startswith(keys.ACLS):
            take_over_acl(self._rules(), key, change)
        elif key == keys.ACL_CHANGE:
            self._acl_change = take_over_change(change)
        elif key.startswith(keys.TOKENS):
            if self._tokens is None:
                self._tokens = dict(self._old.tokens)
            take_over_token(self._tokens, key, change)
        elif key.startswith(keys.DELETED_TOPICS):
            self._apply_tombstone(key, change)
        elif key == keys.FEATURES:
            self._features = (NO_FEATURES, 0) if value is None else (decode(key, value, FeaturesRecord), change.modify_revision)
        elif key == keys.HISTORY:
            self._history = NO_HISTORY if value is None else decode(key, value, HistoryRecord)
        elif key == keys.SUSPENSION:
            self._suspension = "" if value is None else decode(key, value, SuspensionRecord).reason

    def _apply_setting(self, key: bytes, change: KeyValue | Event) -> bool:
        for prefix, field, name_of in _SETTINGS:
            if key.startswith(prefix):
                if field not in self._set:
                    self._set[field] = dict(getattr(self._old, field))
                take_over(self._set[field], name_of(key), key, change)
                return True
        return False

    def _apply_tombstone(self, key: bytes, change: KeyValue | Event) -> None:
        if self._deleted_topics is None:
            self._deleted_topics = dict(self._old.deleted_topics)
        if change.value is None:
            self._deleted_topics.pop(keys.parse_deleted_topic(key), None)
        else:
            self._deleted_topics[keys.parse_deleted_topic(key)] = change.modify_revision
