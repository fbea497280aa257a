"""Finds full log directories in the answers of brokers (DescribeLogDirs from version 4 on), and suggests remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from lowtide.admin.errors import AdminError
from lowtide.admin.log_dirs import LogDir
from lowtide.admin.retained import size
from lowtide.cli.printing import print_table
from lowtide.protocol.types import BrokerId

TOPICS_NAMED: Final = 3

REMEDY: Final = (
    "Appends to them are refused, and their followers fall behind. To free space, delete records (lowtide records "
    "delete), lower retention.ms or retention.bytes of the largest topics (lowtide configs), delete topics, or enlarge "
    "the volume. Files are removed file.delete.delay.ms after they were deleted, a minute by default; lower it if that "
    "is too late."
)


class FullDirectory(NamedTuple):
    """A full log directory of a broker."""

    broker_id: BrokerId
    directory: LogDir

    @property
    def largest_topics(self) -> dict[str, int]:
        """The largest topics in it, with their bytes."""
        sizes = Counter[str]()
        for key, replica in self.directory.replicas.items():
            sizes[key.topic] += replica.size_bytes
        return dict(sizes.most_common(TOPICS_NAMED))


def full_directories(answers: Mapping[BrokerId, Mapping[str, LogDir] | AdminError]) -> list[FullDirectory]:
    """Returns the full directories of all brokers that have answered."""
    return [
        FullDirectory(broker_id, directory)
        for broker_id, directories in sorted(answers.items())
        if not isinstance(directories, AdminError)
        for directory in directories.values()
        if directory.is_full
    ]


def print_full(full: list[FullDirectory]) -> None:
    """Prints full directories and the remedies, if there are any."""
    if not full:
        return
    print("Log directories without room:")
    rows = [
        (
            each.broker_id,
            each.directory.path,
            size(each.directory.usable_bytes),
            size(each.directory.total_bytes),
            ", ".join(f"{topic} {size(held)}" for topic, held in each.largest_topics.items()),
        )
        for each in full
    ]
    print_table(("broker", "directory", "free", "of", "largest topics"), rows)
    print(REMEDY)


def full_values(full: list[FullDirectory]) -> list[dict[str, Any]]:
    """Returns full directories for JSON."""
    return [
        {
            "broker": each.broker_id,
            "path": each.directory.path,
            "usable_bytes": each.directory.usable_bytes,
            "total_bytes": each.directory.total_bytes,
            "largest_topics": each.largest_topics,
        }
        for each in full
    ]
