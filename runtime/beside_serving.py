"""Reads small files while clients are served: certificates, keys of tokens."""

from __future__ import annotations

from pathlib import Path


async def read_file(path: str, bytes_max: int) -> bytes:
    """Returns the first `bytes_max` bytes of a file.

    It is opened, read and closed in one call of a thread, so a cancellation leaves no open file. Errors: OSError.
    """
    from aiofiles.base import wrap  # noqa: PLC0415 - only brokers with such files need it

    return await wrap(_read)(path, bytes_max)


def _read(path: str, bytes_max: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(bytes_max)
