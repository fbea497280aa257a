"""The log directories of a broker at its start: the parts of its logs, and the directories that it can't start without.

What becomes of a directory that fails later is decided by `broker`; the taking and loading of them all is
`storage/directory/directory_opening`.
"""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.descriptors import DescriptorBudget
from lowtide.broker.lifecycle.ports import Ports
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.directory.log_manager import LogManager, LogManagerSettings, OnDirectoryFailed
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import LogConfig


def check_metadata_directory(filesystem: FileSystem, directory: str) -> None:
    """The metadata store needs its directory now; what is wrong with another one is found out when all are opened.

    Errors: StorageError.
    """
    try:
        filesystem.make_directories(directory)
    except OSError as error:
        raise StorageError(directory, f"the log directory cannot be created: {error.strerror or error}") from error


def make_log_manager(
    configs: BrokerConfigs, ports: Ports, budget: DescriptorBudget, on_directory_failed: OnDirectoryFailed
) -> LogManager:
    """The manager of all logs of a broker, which has opened nothing yet."""
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
    """Fails where no log directory is left, or, which is `failed`, the metadata are in one that has failed since it was opened.

    Errors: StorageError.
    """
    if failed or not log_manager.directories.any_is_online:
        offline = log_manager.directories.offline
        raise StorageError(
            ", ".join(offline) or config.log_dirs[0], f"failed while the broker started: {'; '.join(offline.values())}"
        )


def _for_unknown_topics(config: LogConfig) -> LogConfig:
    """What logs are loaded with whose topics aren't known: left by Kafka, to be taken over, or left of deleted topics.

    They may have been compacted, so a gap between two segments is no damage, whatever the default policy is; it isn't
    to Kafka either.
    """
    return replace(config, cleanup_policy=config.cleanup_policy | {"compact"})
