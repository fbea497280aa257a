"""Logs that a start finds and the metadata don't give to this broker: of topics deleted while it was away, of partitions that moved.

They are deleted, so that nobody takes them for those of a topic that is made anew. Not so those that were there before Lowtide used the
directory, or that were left alone when topics were taken over from Apache Kafka: these get an empty file `lowtide-left-alone`, and stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from lowtide.broker.replica_manager import ReplicaManager
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import BrokerId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.checkpoint import parent_directory
from lowtide.storage.log import Log

LEFT_ALONE: Final = "lowtide-left-alone"
"""In the folder of a partition: nobody has to delete it."""


def remove_strays(
    image: MetadataImage,
    logs: Mapping[TopicPartition, Log],
    replicas: ReplicaManager,
    filesystem: FileSystem,
    new_directories: Collection[str],
    log: Any,
) -> None:
    """Delete what has to go; mark, and tell, what stays. `new_directories` weren't used by Lowtide before this start."""
    strays = []
    for key, each in logs.items():
        if _is_here(image, key, replicas.broker_id) or each.offline:
            continue
        mark = f"{each.directory}/{LEFT_ALONE}"
        if filesystem.exists(mark):
            continue
        if parent_directory(each.directory) in new_directories:
            filesystem.replace_file(mark, b"")
            log.warning("log is of no topic, it is left alone", partition=str(key), path=each.directory)
        else:
            strays.append(key)
    if strays:
        log.warning("logs of deleted topics, and of partitions that are elsewhere now, are removed", partitions=len(strays))
        replicas.remove(strays)


def _is_here(image: MetadataImage, key: TopicPartition, broker_id: BrokerId) -> bool:
    """Whether this broker has a partition. A log of an earlier topic in its place goes when the place is needed."""
    topic = image.topics.get(key.topic)
    return topic is not None and key.partition < len(topic.partitions) and broker_id in topic.partitions[key.partition].replicas
