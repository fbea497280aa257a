"""What the registrations of a broker leave in its log directories for the next start (rules DR8 and DR9).

Which one was the last, and the memory through which files were written since.

It acts on directories that are online; one that fails goes offline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.storage.errors import is_passing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lowtide.storage.directory.directory_logs import DirectoryLogs


class RegistrationNotes:
    """The notes in all directories of a broker, by their paths."""

    def __init__(self, directories: Mapping[str, DirectoryLogs]) -> None:
        self._directories = directories

    def registrations(self) -> dict[str, int | None]:
        """By online directory, the number of the registration that reached it last, None where it has none.

        Start code: it may fail one.
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
        """Notes a registration in these directories, as far as they are online, durably. Start code: it syncs.

        A directory without room keeps the old number, and is stale by it; one that fails goes offline.
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
        """Whether an online directory was in use when the machine stopped: what was not synced is perhaps gone."""
        return any(each.is_online and each.state.directory.may_lack_records for each in self._directories.values())

    def note_page_cache(self) -> None:
        """Notes in each online directory that what it may lack is known to the cluster. Start code: it syncs.

        One without room may lack records again at the next start; one that fails goes offline.
        """
        for directory in self._directories.values():
            if directory.is_online:
                try:
                    directory.state.directory.note_page_cache()
                except OSError as error:
                    if not is_passing(error):
                        directory.fail(error)
