"""Opens the embedded metadata store of a directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore
from lowtide.runtime.filesystem import AlreadyLockedError
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.filesystem import FileSystem


async def open_embedded(
    directory: str, filesystem: FileSystem, clock: Clock, in_use: str = "another broker uses this log directory"
) -> EmbeddedStore:
    """Opens the store.

    Errors: StorageError with the message `in_use` if another process has it open; MetadataFileError, OSError.
    """
    try:
        return await EmbeddedStore.open(f"{directory}/{METADATA_FILE}", filesystem=filesystem, clock=clock)
    except AlreadyLockedError as error:
        raise StorageError(directory, in_use) from error
