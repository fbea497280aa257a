"""The log directories of a broker, as its registration asks for them.

Guards: a replica counts as here only if its log is loaded, of this topic, and in a directory that works.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from lowtide.storage.directory.log_manager import LogManager


class BrokerDirectories:
    """The `LogDirectories` of one broker."""

    def __init__(self, log_manager: LogManager, broker_id: BrokerId) -> None:
        """The manager's directories are open, and so locked."""
        self._log_manager = log_manager
        self._broker_id = broker_id

    def registrations(self) -> Mapping[str, int | None]:
        """See `LogDirectories.registrations`."""
        return self._log_manager.directories.notes.registrations()

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        """See `LogDirectories.write_registration`."""
        self._log_manager.directories.notes.write_registration(number, directories)

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        """See `LogDirectories.missing_replicas`.

        The only replica of a partition isn't among them: no other replica has what it lacks, and it can only be served
        as it is.
        """
        logs = self._log_manager.logs
        missing: dict[TopicId, frozenset[int]] = {}
        for topic in image.topics.values():
            numbers = []
            for number, partition in enumerate(topic.partitions):
                if self._broker_id not in partition.replicas or len(partition.replicas) == 1:
                    continue
                log = logs.get(TopicPartition(topic.name, number))
                # A folder that doesn't tell its topic id is this topic's: that of a deleted one has lost its name
                # before.
                is_here = log is not None and not log.offline and log.topic_id in {topic.topic_id, ZERO_TOPIC_ID}
                if log is None or not is_here or log.parent_directory in unsound:
                    numbers.append(number)
            if numbers:
                missing[topic.topic_id] = frozenset(numbers)
        return missing

    def may_lack_records(self) -> bool:
        """See `LogDirectories.may_lack_records`."""
        return self._log_manager.directories.notes.may_lack_records

    def note_page_cache(self) -> None:
        """See `LogDirectories.note_page_cache`."""
        self._log_manager.directories.notes.note_page_cache()


def replicas_of(image: MetadataImage, partitions: Iterable[TopicPartition]) -> Replicas:
    """Partitions by the ids of their topics, as far as the image has them."""
    found: dict[TopicId, set[int]] = {}
    for topic, number in partitions:
        known = image.topics.get(topic)
        if known is not None:
            found.setdefault(known.topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}
