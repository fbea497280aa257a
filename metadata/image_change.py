"""Builds the next image from the changes of one revision, and computes the differences.

Guards: the revision never falls; related keys change together, because a revision is applied as a whole; an unreadable
key affects only what depends on it (`unreadable_keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.acl_image import AclChangeImage, AclImage, apply_acl, read_acl_change
from lowtide.metadata.broker_image import BrokersChange, BrokersImage
from lowtide.metadata.config_image import ConfigImage, apply_config, changed_configs
from lowtide.metadata.draft import Draft
from lowtide.metadata.image import NO_FEATURES, NO_HISTORY, ImageDelta, MetadataImage
from lowtide.metadata.records import (
    NO_LEADER,
    ControllerRecord,
    FeaturesRecord,
    HistoryRecord,
    NeededKeyError,
    SuspensionRecord,
    decode,
)
from lowtide.metadata.scram_image import ScramImageChange
from lowtide.metadata.standing_image import apply_standing
from lowtide.metadata.token_image import apply_token
from lowtide.metadata.topics_change import TopicsChange, TopicsImage
from lowtide.metadata.unreadable_keys import UnreadableKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lowtide.metadata.store import Batch, KeyEvent, KeyValue, Revision
    from lowtide.protocol.types import BrokerId


NOTHING_KNOWN: Final = MetadataImage()


def load_image(
    pairs: Iterable[KeyValue], revision: Revision, *, prefix: bytes, known: MetadataImage = NOTHING_KNOWN
) -> MetadataImage:
    """Returns the image of a range that was read at `revision`; `known` is the previous image, for unreadable keys.

    Errors: NeededKeyError if a key that every broker needs can't be read and isn't known from before.
    """
    change = _ImageChange(MetadataImage(), known)
    for pair in pairs:
        change.apply(pair.key.removeprefix(prefix), pair)
    return change.finish(revision)


def apply_batch(image: MetadataImage, batch: Batch, *, prefix: bytes) -> tuple[MetadataImage, ImageDelta]:
    """Returns the image after `batch`, and the differences."""
    assert batch.revision > image.revision, f"batch {batch.revision} on an image of {image.revision}"
    change = _ImageChange(image, image)
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
    """Returns the differences in `new`, for these topics and brokers, or for all."""
    names = dict.fromkeys([*old.topics, *new.topics]) if names is None else names
    if broker_ids is None:
        named = (
            each
            for image in (old, new)
            for each in (
                *image.brokers,
                *image.offline_replicas,
                *image.stale_marks,
                *image.known_brokers,
                *image.unclean_starts,
            )
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
    )


def _broker_differs(old: MetadataImage, new: MetadataImage, broker_id: BrokerId) -> bool:
    return (
        old.brokers.get(broker_id) != new.brokers.get(broker_id)
        or old.offline_replicas.get(broker_id) != new.offline_replicas.get(broker_id)
        or old.stale_marks.get(broker_id) != new.stale_marks.get(broker_id)
        or old.known_brokers.get(broker_id) != new.known_brokers.get(broker_id)
        or old.unclean_starts.get(broker_id) != new.unclean_starts.get(broker_id)
    )


_SETTINGS: Final[tuple[tuple[bytes, str, Callable[[bytes], str]], ...]] = (
    (keys.BROKER_CONFIGS, "broker_configs", keys.parse_broker_config),
    (keys.GROUP_CONFIGS, "group_configs", lambda key: key.removeprefix(keys.GROUP_CONFIGS).decode()),
    (keys.CLIENT_QUOTAS, "client_quotas", lambda key: key.removeprefix(keys.CLIENT_QUOTAS).decode()),
    (keys.CLIENT_METRICS, "client_metrics", lambda key: key.removeprefix(keys.CLIENT_METRICS).decode()),
)
"""Settings by name: the prefix of their keys, the image's field, and the function that parses the name."""


KEEPING_BROKER_CONFIGS: Final[Mapping[str, str]] = {
    "log.cleanup.policy": "delete",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.retention.commitoffset.enable": "false",
    "log.retention.min.timestamp": "0",
}
"""For brokers whose configuration can't be read: topics with its defaults delete and compact nothing."""

_NEEDED: Final = (keys.CLUSTER_ID, keys.HISTORY, keys.FEATURES)
"""No broker may act without these."""


def _topics_of(image: MetadataImage) -> TopicsImage:
    return TopicsImage(image.topics, image.topic_names, image.loose_partitions)


def _brokers_of(image: MetadataImage) -> BrokersImage:
    return BrokersImage(
        image.brokers,
        image.shutdowns,
        image.offline_replicas,
        image.stale_marks,
        image.known_brokers,
        image.unclean_starts,
    )


class _ImageChange:
    """The changes of one revision. Copies a mapping only when it changes."""

    def __init__(self, image: MetadataImage, known: MetadataImage) -> None:
        self._old = image
        self._known = known
        self._unreadable = UnreadableKeys(image.unreadable)
        self._cluster_id = image.cluster_id
        self._controller = (image.controller_id, image.controller_revision)
        self._features = (image.features, image.features_revision)
        self._history, self._suspension = image.history, image.suspension
        self._settings = {field: Draft[str, ConfigImage](getattr(image, field)) for _, field, _ in _SETTINGS}
        self._deleted_topics = Draft(image.deleted_topics)
        self._acls = Draft(image.acls)
        self._acl_change = image.acl_change
        self._tokens = Draft(image.tokens)
        self._standing = Draft(image.standing)
        self._scram = ScramImageChange(image.scram)
        self.topics = TopicsChange(_topics_of(image), _topics_of(known), self._unreadable)
        self.brokers = BrokersChange(_brokers_of(image), _brokers_of(known))

    def apply(self, key: bytes, change: KeyValue | KeyEvent) -> None:
        """Applies one change, or notes that it can't be read. Errors: see `load_image`."""
        try:
            if not (
                self.topics.apply(key, change) or self.brokers.apply(key, change) or self._apply_setting(key, change)
            ):
                self._apply_other(key, change)
        except ValueError as error:
            self._hold(key, change, str(error))
        else:
            self._unreadable.forget(key)

    def _hold(self, key: bytes, change: KeyValue | KeyEvent, reason: str) -> None:
        """Keeps the known value of a key that can't be read, or a harmless one (`unreadable_keys`).

        Errors: NeededKeyError.
        """
        if change.value is None:  # It was never readable.
            self._unreadable.forget(key)
            return
        try:
            keeps = self._keep(key, change, reason)
        except NeededKeyError:
            raise
        except ValueError:
            keeps = False  # The key names nothing that exists.
        self._unreadable.note(key, change.modify_revision, reason, keeps=keeps)

    def _keep(self, key: bytes, change: KeyValue | KeyEvent, reason: str) -> bool:
        revision = change.modify_revision
        if key.startswith((keys.PARTITIONS, keys.TOPICS, keys.TOPIC_CONFIGS)):
            return self.topics.hold(key, revision)
        if key.startswith((keys.BROKERS, keys.KNOWN_BROKERS, keys.SHUTDOWNS, keys.OFFLINE, keys.STALE)):
            return self.brokers.hold(key, change)
        setting = next((each for each in _SETTINGS if key.startswith(each[0])), None)
        if setting is not None:
            return self._keep_setting(setting[1], setting[2](key), revision)
        if key.startswith((keys.ACLS, keys.ACL_CHANGE)):
            return self._keep_rule(key, revision)
        if key.startswith((keys.SCRAM, keys.TOKENS, keys.STANDING)):
            return self._keep_secret(key)
        return self._keep_single(key, change, reason)

    def _keep_setting(self, field: str, name: str, revision: Revision) -> bool:
        known = getattr(self._known, field).get(name)
        instead = KEEPING_BROKER_CONFIGS if field == "broker_configs" else {}
        self._settings[field].put(name, ConfigImage(instead if known is None else known.configs, revision))
        return known is not None

    def _keep_rule(self, key: bytes, revision: Revision) -> bool:
        if key == keys.ACL_CHANGE:
            change = self._known.acl_change
            self._acl_change = None if change is None else AclChangeImage(change.change, revision)
            return change is not None
        known = self._known.acls.get(key)
        if known is not None:
            self._acls.put(key, AclImage(known.acl, revision))
        return known is not None

    def _keep_secret(self, key: bytes) -> bool:
        """Removes an unreadable credential or token, so that it admits no client, or an unreadable standing erasure."""
        if key.startswith(keys.SCRAM):
            return self._scram.hold(key, self._known.scram.secret)
        if key.startswith(keys.STANDING):
            self._standing.put(keys.parse_standing(key), None)
            return False
        self._tokens.put(key, None)
        return False

    def _keep_single(self, key: bytes, change: KeyValue | KeyEvent, reason: str) -> bool:
        """Keeps the value of a key that exists once. Errors: NeededKeyError."""
        known = self._known
        if key == keys.SUSPENSION:
            self._suspension = f"and why can't be read ({reason})"
        elif key == keys.CONTROLLER:
            is_same = known.controller_revision == change.create_revision
            self._controller = (known.controller_id, known.controller_revision) if is_same else (NO_LEADER, 0)
            return is_same
        elif key in _NEEDED:
            if known is NOTHING_KNOWN:
                raise NeededKeyError(reason)
            if key == keys.CLUSTER_ID:
                self._cluster_id = known.cluster_id
            elif key == keys.HISTORY:
                self._history = known.history
            else:
                self._features = (known.features, change.modify_revision)
            return True
        return False

    def finish(self, revision: Revision) -> MetadataImage:
        old = self._old
        if self._acl_change is not None and self._acl_change is not old.acl_change:
            self._acl_change.apply_to(self._acls.edit())
        topics, brokers = self.topics.finish(), self.brokers.finish()
        return MetadataImage(
            revision,
            self._cluster_id,
            *self._controller,
            brokers.alive,
            topics.by_name,
            topics.names,
            topics.loose,
            self._settings["broker_configs"].now,
            brokers.shutdowns,
            brokers.offline_replicas,
            brokers.stale_marks,
            *self._features,
            brokers.known,
            self._settings["group_configs"].now,
            self._deleted_topics.now,
            self._history,
            self._suspension,
            self._acls.now,
            self._settings["client_quotas"].now,
            self._scram.finish(),
            self._acl_change,
            self._tokens.now,
            self._settings["client_metrics"].now,
            brokers.unclean_starts,
            self._standing.now,
            self._unreadable.found,
        )

    def _apply_other(self, key: bytes, change: KeyValue | KeyEvent) -> None:
        value = change.value
        if key == keys.CONTROLLER:
            self._controller = (
                (NO_LEADER, 0)
                if value is None
                else (decode(key, value, ControllerRecord).broker_id, change.create_revision)
            )
        elif key == keys.CLUSTER_ID and value is not None:
            self._cluster_id = value.decode()
        elif key.startswith(keys.SCRAM):
            self._scram.apply(key, change)
        elif key.startswith(keys.ACLS):
            apply_acl(self._acls.edit(), key, change)
        elif key == keys.ACL_CHANGE:
            self._acl_change = read_acl_change(change)
        elif key.startswith(keys.TOKENS):
            apply_token(self._tokens.edit(), key, change)
        elif key.startswith(keys.STANDING):
            apply_standing(self._standing.edit(), key, change)
        elif key.startswith(keys.DELETED_TOPICS):
            deleted_at = None if value is None else change.modify_revision
            self._deleted_topics.put(keys.parse_deleted_topic(key), deleted_at)
        elif key == keys.FEATURES:
            self._features = (
                (NO_FEATURES, 0) if value is None else (decode(key, value, FeaturesRecord), change.modify_revision)
            )
        elif key == keys.HISTORY:
            self._history = NO_HISTORY if value is None else decode(key, value, HistoryRecord)
        elif key == keys.SUSPENSION:
            self._suspension = "" if value is None else decode(key, value, SuspensionRecord).reason

    def _apply_setting(self, key: bytes, change: KeyValue | KeyEvent) -> bool:
        for prefix, field, name_of in _SETTINGS:
            if key.startswith(prefix):
                apply_config(self._settings[field].edit(), name_of(key), key, change)
                return True
        return False
