"""Logs that the metadata do not assign to this broker: removed, set aside, or left alone.

A log is removed only if the metadata say so: its topic id was deleted (a tombstone), or its partition was moved to
other brokers after the log was last led or followed here. A missing topic alone proves nothing, because the metadata
may have been restored to an earlier state. Such a log is set aside: its folder gets a name that ends in `-stray`, as in
Kafka, and is never removed.

At a start, logs that were there before Lowtide used the directory, or that an adoption from Apache Kafka left out, stay
where they are and get an empty file `lowtide-left-alone`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import BrokerId, LeaderEpoch, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.log.log import Log

LEFT_ALONE: Final = "lowtide-left-alone"
"""A file in the folder of a partition that stays where it is."""


def settle_strays(
    image: MetadataImage,
    broker_id: BrokerId,
    logs: Mapping[TopicPartition, Log],
    filesystem: FileSystem,
    new_directories: Collection[str],
    log: Any,
) -> dict[TopicPartition, TopicId]:
    """Marks the logs that are left alone, and returns the other stray logs, with their topic ids.

    `new_directories` were not used by Lowtide before this start.
    """
    strays: dict[TopicPartition, TopicId] = {}
    for key, each in logs.items():
        if _is_here(image, key, broker_id) or each.offline or image.hides_topic(key.topic):
            continue
        mark = f"{each.directory}/{LEFT_ALONE}"
        if filesystem.exists(mark):
            continue
        if each.parent_directory in new_directories and each.topic_id not in image.deleted_topics:
            filesystem.replace_file(mark, b"")
            log.warning("log is of no topic, it is left alone", partition=str(key), path=each.directory)
        else:
            strays[key] = each.topic_id
    return strays


def has_to_go(
    image: MetadataImage, broker_id: BrokerId, key: TopicPartition, topic_id: TopicId, latest_epoch: LeaderEpoch
) -> bool:
    """Returns whether a log is to be removed: its topic was deleted, or its partition is on other brokers.

    `latest_epoch` is the log's newest leader epoch: older metadata prove nothing.
    """
    topic = image.topic_by_id(topic_id)
    if topic is None or key.partition >= len(topic.partitions):
        return topic_id in image.deleted_topics
    state = topic.partitions[key.partition]
    return state.is_known and broker_id not in state.replicas and latest_epoch <= state.leader_epoch


def _is_here(image: MetadataImage, key: TopicPartition, broker_id: BrokerId) -> bool:
    """Returns whether this broker hosts a partition, or may host it, under any topic id."""
    topic = image.topics.get(key.topic)
    if topic is None or key.partition >= len(topic.partitions):
        return False
    state = topic.partitions[key.partition]
    return broker_id in state.replicas or not state.is_known
