"""Plans the controller's clean-up of leftovers and unneeded marks, and the features that brokers agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import NO_CHANGE, ChangePlan, Step, step_sized
from lowtide.metadata.records import ELIGIBLE_LEADERS_LEVEL, ERASURES_LEVEL, LOG_START_REPORTING_LEVEL, encode
from lowtide.metadata.store import Compare, Delete, Put
from lowtide.replication.steps import MAX_STEP_COMPARES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.metadata.broker_image import StaleMark
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.store import Revision
    from lowtide.protocol.types import BrokerId


def plan_sweep(image: MetadataImage) -> ChangePlan:
    """Plans the deletion of partitions that no topic counts and that were written before this controller was elected.

    An earlier controller can't continue a creation or growth, because its fence is gone; this controller's have newer
    revisions. Each is compared, because a growth of its topic may write it again at any time. Nothing is deleted while
    a topic can't be read, because it may count them.
    """
    if image.hides_topics:
        return NO_CHANGE
    leftovers = [
        (keys.partition(topic_id, number), partition.modify_revision)
        for topic_id, partitions in image.loose_partitions.items()
        for number, partition in partitions.items()
        if partition.modify_revision < image.controller_revision
    ]
    return ChangePlan(tuple(map(_deletion, step_sized(leftovers)))) if leftovers else NO_CHANGE


def _deletion(known: Sequence[tuple[bytes, Revision]]) -> Step:
    """Returns the step that deletes these keys, valid while they keep their revisions."""
    compares = tuple(Compare(key, "modify", "==", revision) for key, revision in known)
    return Step(tuple(Delete(key) for key, _ in known), compares)


def plan_sweep_of_marks(image: MetadataImage) -> ChangePlan:
    """Plans the deletion of stale-replica marks (rule DR8) that no ISR member or eligible leader needs any more.

    A member is stale only if its registration is older than the mark. A replica that isn't a member now can join only
    under a newer registration.
    """
    steps = [
        _deletion([(keys.stale(broker_id, mark.number), mark.revision)])
        for broker_id, marks in image.stale_marks.items()
        for mark in marks
        if not _is_needed(image, broker_id, mark)
    ]
    return ChangePlan(tuple(steps)) if steps else NO_CHANGE


def _is_needed(image: MetadataImage, broker_id: BrokerId, mark: StaleMark) -> bool:
    if mark.replicas is None:
        return True  # Unreadable.
    for topic_id, numbers in mark.replicas.items():
        topic = image.topic_by_id(topic_id)
        if topic is None:
            continue
        for number in sorted(numbers):
            partition = topic.partitions[number] if number < len(topic.partitions) else None
            if partition is not None and partition.members.get(broker_id, mark.revision) < mark.revision:
                return True
    return False


def plan_sweep_of_tombstones(image: MetadataImage) -> ChangePlan:
    """Plans the deletion of the oldest topic tombstones beyond `keys.TOMBSTONES_MAX`.

    A log that is found without a tombstone is set aside, not removed.
    """
    surplus = len(image.deleted_topics) - keys.TOMBSTONES_MAX
    if surplus <= 0:
        return NO_CHANGE
    oldest = sorted(image.deleted_topics.items(), key=lambda entry: entry[1])[:surplus]
    gone = [Delete(keys.deleted_topic(topic_id)) for topic_id, _ in oldest]
    return ChangePlan(tuple(map(Step, step_sized(gone))))


def plan_features(image: MetadataImage) -> ChangePlan:
    """Plans the features that all registered brokers support.

    These are log start reports (KIP-107), eligible leaders (KIP-966), and erasures of single records. A feature is
    never switched off.
    """
    if image.erases_records or not image.brokers:
        return NO_CHANGE
    level = min(broker.metadata_level for broker in image.brokers.values())
    reporting = max(image.features.log_start_reporting, int(level >= LOG_START_REPORTING_LEVEL))
    eligible = max(image.features.eligible_leaders, int(level >= ELIGIBLE_LEADERS_LEVEL))
    wanted = msgspec.structs.replace(
        image.features,
        log_start_reporting=reporting,
        eligible_leaders=eligible,
        required_level=ERASURES_LEVEL if level >= ERASURES_LEVEL else 0,
    )
    if wanted == image.features:
        return NO_CHANGE
    compares = [Compare(keys.FEATURES, "modify", "==", image.features_revision)]
    compares += [
        Compare(keys.broker(broker_id), "create", "==", broker.epoch)
        for broker_id, broker in sorted(image.brokers.items())
    ]
    return ChangePlan((Step((Put(keys.FEATURES, encode(wanted)),), tuple(compares[:MAX_STEP_COMPARES])),))
