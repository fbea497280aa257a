"""Whether a log directory works: opened, served, offline or stopped. All other parts of a directory are built on it.

    not opened ── open ──> online ── begin_serving ──> served ── stop ──> stopped
    any ── fail ──> offline, for good: only the next start of the broker brings it back

Guards: a directory fails once; a failure while it is served leaves a mark for the next start (`sync_failure`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.storage.directory.sync_failure import mark_failed
from lowtide.storage.errors import StorageError
from lowtide.storage.log_directory import LogDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.protocol.types import TopicId
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.runtime.random import Random
    from lowtide.storage.log_directory import BrokerIdentity


class DirectoryState:
    """The state of one directory."""

    def __init__(self, path: str, filesystem: FileSystem, on_failed: Callable[[str], None]) -> None:
        """`on_failed` is called once, with the reason, when the directory goes offline, unless it is being stopped."""
        self.path = path
        self._filesystem = filesystem
        self._on_failed = on_failed
        self._directory: LogDirectory | None = None
        self._failed_to_open: str | None = None
        self._is_served = False
        self.is_stopped = False

    def open(self, identity: BrokerIdentity, random: Random) -> None:
        self._directory = LogDirectory.open(self._filesystem, self.path, identity, random)

    def begin_serving(self) -> None:
        self._is_served = True

    def stop(self) -> None:
        self.is_stopped = True

    def release(self) -> None:
        if self._directory is not None:
            self._directory.release()

    def fail(self, error: OSError | StorageError) -> None:
        """Takes the directory offline. A second failure changes nothing."""
        reason = error.reason if isinstance(error, StorageError) else error.strerror or str(error)
        if self._directory is None:
            self._failed_to_open = reason
            self._on_failed(reason)
            return
        if self._directory.is_online and self._is_served:
            mark_failed(self._filesystem, self.path)
        if self._directory.fail(reason) and not self.is_stopped:
            self._on_failed(reason)

    @property
    def directory(self) -> LogDirectory:
        assert self._directory is not None, self.path
        return self._directory

    @property
    def is_online(self) -> bool:
        """Whether its logs are served, or may be once they are loaded."""
        return self._directory is not None and self._directory.is_online

    def is_active(self) -> bool:
        """Returns whether the directory is online and isn't being stopped."""
        return self._directory is not None and self._directory.is_online and not self.is_stopped

    @property
    def directory_id(self) -> TopicId | None:
        """The directory's id; None if it couldn't be opened."""
        return None if self._directory is None else self._directory.directory_id

    @property
    def offline_reason(self) -> str | None:
        """Why its logs aren't served; None while they are."""
        return self._failed_to_open if self._directory is None else self._directory.offline_reason
