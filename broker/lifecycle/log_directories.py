"""The log directories of a broker at its start, and for its registration.

`broker` handles directories that fail later; `storage/directory/directory_opening` locks and loads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.descriptors import DescriptorBudget
from lowtide.broker.lifecycle.ports import Ports
from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.directory.log_manager import LogManager, LogManagerSettings, OnDirectoryFailed
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import LogConfig


def check_metadata_directory(filesystem: FileSystem, directory: str) -> None:
    """Creates the directory of the metadata store. Other directories are checked when all are opened.

    Errors: StorageError.
    """
    try:
        filesystem.make_directories(directory)
    except OSError as error:
        raise StorageError(directory, f"the log directory cannot be created: {error.strerror or error}") from error


def make_log_manager(
    configs: BrokerConfigs, ports: Ports, budget: DescriptorBudget, on_directory_failed: OnDirectoryFailed
) -> LogManager:
    """Creates the manager of all logs, which has opened nothing yet."""
    config = configs.current
    return LogManager(
        ports.filesystem,
        ports.clock,
        list(config.log_dirs),
        {directory: ports.make_committer(directory) for directory in config.log_dirs},
        ports.worker,
        ports.random,
        LogManagerSettings(
            recovery_point_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            high_watermark_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
            producer_id_expiration_ms=lambda: configs.current.producer_id_expiration_ms,
            frees_deleted=config.frees_deleted,
            segment_files_max=budget.segment_files,
            default_config=_for_unknown_topics(log_config(config, {})),
        ),
        on_directory_failed,
    )


def check_directories(log_manager: LogManager, config: BrokerConfig, *, failed: bool) -> None:
    """Fails if no log directory is left, or if the one with the metadata has `failed` since it was opened.

    Errors: StorageError.
    """
    if failed or not log_manager.directories.any_is_online:
        offline = log_manager.directories.offline
        raise StorageError(
            ", ".join(offline) or config.log_dirs[0], f"failed while the broker started: {'; '.join(offline.values())}"
        )


def _for_unknown_topics(config: LogConfig) -> LogConfig:
    """Returns the configuration of logs with unknown topics: left by Kafka, or by deleted topics.

    They may have been compacted, so a gap between two segments is not treated as damage; nor does Kafka.
    """
    return replace(config, cleanup_policy=config.cleanup_policy | {"compact"})


class BrokerDirectories:
    """The `LogDirectorySet` of one broker, as its registration needs them.

    Guards: a replica counts as present only if its log is loaded, belongs to the topic, and is in a working directory.
    """

    def __init__(self, log_manager: LogManager, broker_id: BrokerId) -> None:
        """The manager's directories are open, and thus locked."""
        self._log_manager = log_manager
        self._broker_id = broker_id

    def registrations(self) -> Mapping[str, int | None]:
        return self._log_manager.directories.notes.registrations()

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        self._log_manager.directories.notes.write_registration(number, directories)

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        """See `LogDirectorySet.missing_replicas`.

        Excludes partitions with a single replica: no other replica has the missing records, so it is served as it is.
        """
        logs = self._log_manager.logs
        missing: dict[TopicId, frozenset[int]] = {}
        for topic in image.topics.values():
            numbers = []
            for number, partition in enumerate(topic.partitions):
                if self._broker_id not in partition.replicas or len(partition.replicas) == 1:
                    continue
                log = logs.get(TopicPartition(topic.name, number))
                # A folder without a topic id belongs to this topic: folders of deleted topics were renamed.
                is_here = log is not None and not log.offline and log.topic_id in {topic.topic_id, ZERO_TOPIC_ID}
                if log is None or not is_here or log.parent_directory in unsound:
                    numbers.append(number)
            if numbers:
                missing[topic.topic_id] = frozenset(numbers)
        return missing

    def may_lack_records(self) -> bool:
        return self._log_manager.directories.notes.may_lack_records

    def note_page_cache(self) -> None:
        self._log_manager.directories.notes.note_page_cache()


def replicas_of(image: MetadataImage, partitions: Iterable[TopicPartition]) -> Replicas:
    """Returns the partitions by topic id, as far as the image has them."""
    found: dict[TopicId, set[int]] = {}
    for topic, number in partitions:
        known = image.topics.get(topic)
        if known is not None:
            found.setdefault(known.topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
