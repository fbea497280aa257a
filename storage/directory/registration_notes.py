"""The notes of a broker's registrations in its log directories, for the next start (rules DR8 and DR9).

They are the number of the last registration, and the machine's memory through which files were written since. A
directory that fails goes offline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.storage.errors import is_passing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lowtide.storage.directory.directory_logs import DirectoryLogs


class RegistrationNotes:
    """The notes in all directories of a broker, by path."""

    def __init__(self, directories: Mapping[str, DirectoryLogs]) -> None:
        self._directories = directories

    def registrations(self) -> dict[str, int | None]:
        """Returns the number of the last registration noted, by online directory; None if there is none.

        Start code: it may fail a directory.
        """
        numbers = {}
        for path, directory in self._directories.items():
            if directory.is_online:
                try:
                    numbers[path] = directory.state.directory.registration()
                except OSError as error:
                    directory.fail(error)
        return numbers

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        """Writes a registration's number durably to those of these directories that are online. Start code: it syncs.

        A directory without room keeps the old number and counts as stale; one that fails goes offline.
        """
        for path in directories:
            directory = self._directories[path]
            if directory.is_online:
                try:
                    directory.state.directory.write_registration(number)
                except OSError as error:
                    if not is_passing(error):
                        directory.fail(error)

    @property
    def may_lack_records(self) -> bool:
        """Whether an online directory was in use when the machine stopped: unsynced records may be lost."""
        return any(each.is_online and each.state.directory.may_lack_records for each in self._directories.values())

    def note_page_cache(self) -> None:
        """Records the page cache in each online directory, once the store knows which records they may lack.

        Start code: it syncs. A directory without room may lack records again at the next start. One that fails goes
        offline.
        """
        for directory in self._directories.values():
            if directory.is_online:
                try:
                    directory.state.directory.note_page_cache()
                except OSError as error:
                    if not is_passing(error):
                        directory.fail(error)
