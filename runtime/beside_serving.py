"""Small files that are read while clients are served, and are neither logs nor checkpoints: certificates, keys of tokens."""

from __future__ import annotations

from pathlib import Path

from aiofiles.base import wrap


async def read_file(path: str, bytes_max: int) -> bytes:
    """The first bytes of a file, at most so many.

    It is opened, read and closed in one call of a thread: none stays open at a cancel.
    Errors: OSError.
    """
    return await _in_a_thread(path, bytes_max)


def _read(path: str, bytes_max: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(bytes_max)


_in_a_thread = wrap(_read)
