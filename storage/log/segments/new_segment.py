"""Creates the files of new segments, at once or at the first use."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from lowtide.storage.log.segments.segment import Segment

if TYPE_CHECKING:
    from lowtide.protocol.types import Offset
    from lowtide.runtime.filesystem import File, FileSystem
    from lowtide.storage.log.segments.open_files import OpenFiles


def create_segment(
    filesystem: FileSystem,
    directory: str,
    base_offset: Offset,
    *,
    now_ms: int,
    preallocate_bytes: int = 0,
    files: OpenFiles | None = None,
) -> Segment:
    """Creates the empty `.log` file of a new segment and opens it for writing.

    A file of that name is left by a failed roll, and is emptied. Errors: OSError; then no file is left behind.
    """
    create_file = partial(create_segment_file, filesystem, preallocate_bytes)
    segment = Segment.put_off(filesystem, directory, base_offset, now_ms=now_ms, create_file=create_file, files=files)
    segment.open_for_writing()
    return segment


def create_segment_file(filesystem: FileSystem, preallocate_bytes: int, path: str) -> File:
    """Creates the empty `.log` file of a segment. Errors: OSError; then no file is left behind."""
    file = filesystem.open(path, write=True, create=True)
    try:
        if file.size():
            file.truncate(0)
        if preallocate_bytes:
            file.allocate(preallocate_bytes)
    except OSError:
        file.close()
        with contextlib.suppress(OSError):
            filesystem.unlink(path)
        raise
    return file
