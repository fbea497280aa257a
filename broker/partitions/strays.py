"""Logs that the metadata don't give to this broker, and what becomes of them: removed, set aside, or left alone.

A log is removed only where the metadata hold that it has to go: its topic id was deleted (a tombstone), or its
partition was moved to other brokers since the log was led or followed here. That the metadata merely lack a topic
proves nothing: they may have been put back to an earlier state. Such a log is set aside: its folder gets a name that
ends in `-stray`, as in Kafka, and nothing removes it.

At a start logs are left where they are that were there before Lowtide used the directory, or that were left alone when
topics were taken over from Apache Kafka: these get an empty file `lowtide-left-alone`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import BrokerId, LeaderEpoch, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.log.log import Log

LEFT_ALONE: Final = "lowtide-left-alone"
"""In the folder of a partition: it stays where it is."""


def settle_strays(
    image: MetadataImage,
    broker_id: BrokerId,
    logs: Mapping[TopicPartition, Log],
    filesystem: FileSystem,
    new_directories: Collection[str],
    log: Any,
) -> dict[TopicPartition, TopicId]:
    """Mark what a start found, the image doesn't give to this broker, and is to stay.

    Returns what has to leave, with its topic ids.
    `new_directories` weren't used by Lowtide before this start.
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
    """Whether the metadata hold that a log is to be removed: its topic was deleted, or its partition is elsewhere by now.

    `latest_epoch` is the newest leader epoch that the log has seen: metadata that are older than that prove nothing.
    """
    topic = image.topic_by_id(topic_id)
    if topic is None or key.partition >= len(topic.partitions):
        return topic_id in image.deleted_topics
    state = topic.partitions[key.partition]
    return state.is_known and broker_id not in state.replicas and latest_epoch <= state.leader_epoch


def _is_here(image: MetadataImage, key: TopicPartition, broker_id: BrokerId) -> bool:
    """Whether this broker has a partition, or may have it.

    A log of an earlier topic in its place goes when the place is needed.
    """
    topic = image.topics.get(key.topic)
    if topic is None or key.partition >= len(topic.partitions):
        return False
    state = topic.partitions[key.partition]
    return broker_id in state.replicas or not state.is_known
