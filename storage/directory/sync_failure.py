"""Marks a directory after a failed sync, and repairs it at the next start.

After a failed sync the system may treat pages as clean that the disk doesn't hold: they can be read, and syncing them
again proves nothing. A broker that restarts while the machine keeps running would consider them safe, and append
acknowledged records after a hole that opens with the next power cut. So the directory is marked when it fails. The mark
needs no durability, because after a power cut only durable bytes can be read. A start that finds the mark rewrites
everything above the recovery points, syncs it, and removes the mark.

Source: PostgreSQL's "fsyncgate", 2018.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from lowtide.protocol.types import Offset, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX

SYNC_FAILED_MARK = "lowtide-sync-failed"

_CHUNK_BYTES = 1 << 20


def mark_failed(filesystem: FileSystem, directory: str) -> None:
    """Creates the mark, if the disk still accepts it."""
    with contextlib.suppress(OSError):
        filesystem.write_bytes(f"{directory}/{SYNC_FAILED_MARK}", b"")


def rewrite_unsynced(
    filesystem: FileSystem,
    directory: str,
    folders: Mapping[str, TopicPartition],
    recovery_points: Mapping[TopicPartition, Offset],
) -> bool:
    """Rewrites and syncs files that may not be on the disk, if the directory is marked.

    Start code. Returns whether it was marked. Errors: OSError; the mark then stays.
    """
    mark = f"{directory}/{SYNC_FAILED_MARK}"
    if not filesystem.exists(mark):
        return False
    for name, partition in folders.items():
        folder = f"{directory}/{name}"
        for segment in _unsafe_segments(filesystem.listdir(folder), recovery_points.get(partition, 0)):
            _rewrite(filesystem, f"{folder}/{segment}")
        filesystem.sync_directory(folder)
    filesystem.sync_directory(directory)
    filesystem.unlink(mark)
    return True


def _unsafe_segments(names: Iterable[str], recovery_point: Offset) -> list[str]:
    """Returns the segments that reach beyond the recovery point: from the last that begins at or below it."""
    segments = sorted(name for name in names if name.endswith(LOG_SUFFIX) and name.removesuffix(LOG_SUFFIX).isdigit())
    below = [name for name in segments if int(name.removesuffix(LOG_SUFFIX)) <= recovery_point]
    return segments[max(len(below) - 1, 0) :]


def _rewrite(filesystem: FileSystem, path: str) -> None:
    file = filesystem.open(path, write=True)
    position, size = 0, file.size()
    while position < size:
        chunk = file.pread(min(_CHUNK_BYTES, size - position), position)
        if not chunk:
            break
        file.pwritev([chunk], position)
        position += len(chunk)
    file.sync()
    file.close()
