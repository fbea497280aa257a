"""The surroundings of a move between directories: ports, the rate of copying, and requests that wait for the copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.protocol.erasure_record import EraseGoal
    from lowtide.storage.directory.allowance import Allowance
    from lowtide.storage.directory.directory_erasures import OnErased
    from lowtide.storage.directory.log_settings import DirectoryPorts
    from lowtide.storage.errors import StorageError
    from lowtide.storage.log.log import Log


def relocate(log: Log, directory: str) -> None:
    """Follows the rename of a log's folder. No barrier, hole, swap or removal of the log is under way."""
    log.files.relocate(directory)
    log.directory = directory


def take_over(log: Log, source: Log) -> None:
    """Copies from the source to `log` what batches don't have: all producers, the searches, the high watermark.

    Both logs end at the same offset. The source also knows producers whose records were all deleted (KAFKA-7190).
    Errors: OSError; then only memory has the state.
    """
    assert log.log_end_offset == source.log_end_offset, (log.describe(), source.describe())
    log.producer_state, log.transactions = source.producer_state, source.transactions
    log.advance_high_watermark(source.high_watermark)
    log.erasures.take_over(source.erasures)
    log.swaps.take_over(source.swaps)
    if source.producer_state.producers:
        log.files.sync.note_written([log.files.snapshots.take(log.log_end_offset, source.producer_state)])


class MoveCounts(msgspec.Struct):
    """The moves into one directory since the start."""

    copied_bytes: int = 0
    """Bytes of batches, including those of moves that failed."""
    done: int = 0
    failed: int = 0
    """Moves that ended because a directory failed, or could not begin. The next start may continue them."""

    def on_copied(self, size_bytes: int) -> None:
        self.copied_bytes += size_bytes

    def on_done(self) -> None:
        self.done += 1

    def on_failed(self) -> None:
        self.failed += 1


class MovePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The ports and functions that one move uses. An argument of type `Any` is the move."""

    source: DirectoryPorts
    target: DirectoryPorts
    allowance: Allowance
    counts: MoveCounts
    """Those of the target."""
    is_current: Callable[[Any], bool]
    on_failure: Callable[[str, StorageError], None]
    """Called with the path of the directory that fails."""
    on_moved: Callable[[Any, Log], None]
    """Called with the log that has taken its source's place, within the same turn of the loop."""
    on_named: Callable[[Any, OSError | None], None]
    """Called when its name is durable."""


class AwaitedErasure(msgspec.Struct, eq=False):
    """A request to erase records that the copy may have too; the source has none of them any more."""

    goal: EraseGoal
    on_done: OnErased
    is_asked: bool = False
    """Whether the copy is being erased."""


PREFERRED_MAX: Final = 10_000
"""Partitions for which a directory is remembered; beyond that the oldest is forgotten."""


class PreferredDirectories:
    """The preferred directories for new logs, by partition."""

    def __init__(self) -> None:
        self._paths: dict[TopicPartition, str] = {}

    def note(self, key: TopicPartition, path: str) -> None:
        self._paths.pop(key, None)
        while len(self._paths) >= PREFERRED_MAX:
            del self._paths[next(iter(self._paths))]
        self._paths[key] = path

    def get(self, key: TopicPartition) -> str | None:
        return self._paths.get(key)

    def forget(self, key: TopicPartition) -> None:
        self._paths.pop(key, None)
