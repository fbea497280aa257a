"""Names of the folders in a log directory, in Apache Kafka's form: of partitions, and of moved or deleted ones."""

from __future__ import annotations

import re

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.random import Random

KAFKA_METADATA_TOPIC = "__cluster_metadata"
"""Kafka's own metadata log: it lies among the partitions and is not to be recovered, cut or served."""

_PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_FUTURE_FOLDER = re.compile(r"(?P<partition>.+-[0-9]+)\.[0-9a-f]{32}-future")
_DELETED_FOLDER = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
_RENAMED_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]+)\.[0-9a-f]{32}-(delete|stray|future)")
_MAX_PARTITION = 2**31 - 1
_FOLDER_NAME_MAX = 255


def parse_folder_name(name: str) -> TopicPartition | None:
    """Returns the partition whose folder has this name; None if it is no partition's."""
    match = _PARTITION_FOLDER.fullmatch(name)
    if match is None or match["topic"] in {".", "..", KAFKA_METADATA_TOPIC} or int(match["partition"]) > _MAX_PARTITION:
        return None
    return TopicPartition(match["topic"], int(match["partition"]))


def parse_future_name(name: str) -> TopicPartition | None:
    """Returns the partition whose log is being moved into a folder of this name; None for other folders."""
    match = _FUTURE_FOLDER.fullmatch(name)
    return None if match is None else parse_folder_name(match["partition"])


def future_folder_name(topic_partition: TopicPartition, random: Random) -> str | None:
    """Returns a new name for the folder that a log is moved into, as in Kafka; None for too long a topic."""
    return _future_name(topic_partition, random.getrandbits(128)) if can_be_moved(topic_partition) else None


def can_be_moved(topic_partition: TopicPartition) -> bool:
    """Returns whether the name of the folder for a move of its log would be short enough."""
    return len(_future_name(topic_partition, 0)) <= _FOLDER_NAME_MAX


def _future_name(topic_partition: TopicPartition, number: int) -> str:
    return f"{topic_partition}.{number:032x}-future"


def is_deleted_folder(name: str) -> bool:
    """Returns whether a folder of this name is being deleted."""
    return _DELETED_FOLDER.fullmatch(name) is not None


def partition_of_folder(name: str) -> tuple[TopicPartition, bool] | None:
    """Returns the partition that a folder belongs or belonged to, even if renamed; None for other folders.

    True if the topic's name may have been cut: then it is only a prefix, and the folder has the id.
    """
    match = _RENAMED_FOLDER.fullmatch(name)
    if match is None:
        plain = parse_folder_name(name)
        return None if plain is None else (plain, False)
    return TopicPartition(match["topic"], int(match["partition"])), len(name) == _FOLDER_NAME_MAX


def deleted_folder_name(topic_partition: TopicPartition, random: Random) -> str:
    """Returns a new name for the folder of a deleted partition. A long topic is cut, as in Kafka, to fit 255 bytes."""
    return _fresh_folder_name(topic_partition, random, "delete")


def stray_folder_name(topic_partition: TopicPartition, random: Random) -> str:
    """Returns a new name for a folder that is set aside: nothing removes it.

    Source: Kafka's `UnifiedLog.logStrayDirName`.
    """
    return _fresh_folder_name(topic_partition, random, "stray")


def _fresh_folder_name(topic_partition: TopicPartition, random: Random, ending: str) -> str:
    suffix = f"-{topic_partition.partition}.{random.getrandbits(128):032x}-{ending}"
    return topic_partition.topic[: _FOLDER_NAME_MAX - len(suffix)] + suffix
