"""Reads small files while clients are served: certificates, keys of tokens."""

from __future__ import annotations

from pathlib import Path

from aiofiles.base import wrap


async def read_file(path: str, bytes_max: int) -> bytes:
    """Returns the first `bytes_max` bytes of a file.

    It is opened, read and closed in one call of a thread, so a cancellation leaves no open file. Errors: OSError.
    """
    return await _in_a_thread(path, bytes_max)


def _read(path: str, bytes_max: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(bytes_max)


_in_a_thread = wrap(_read)
