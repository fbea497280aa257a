"""Functions of the system for this process."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Final

_FOLDER_BEGIN: Final = "lowtide-"
_FOLDER_END: Final = ".dist-info"


def environment() -> Mapping[str, str]:
    """Returns the environment variables."""
    return dict(os.environ)


def host_name() -> str:
    """Returns the name of this machine, which other machines may not know."""
    return socket.gethostname()


def read_some(descriptor: int) -> bytes:
    """Returns some bytes from a terminal or pipe; empty at its end."""
    return os.read(descriptor, 64)


def standard_input(piece_bytes: int) -> Iterator[bytes]:
    """Yields standard input in pieces as they arrive. Errors: OSError."""
    while piece := os.read(0, piece_bytes):
        yield piece


def raise_open_file_limit() -> int:
    """Raises the limit of open files (RLIMIT_NOFILE) to its maximum. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # A hard limit above what the kernel allows now: keep the present one.
            return soft
    return hard


UNLIMITED_OPEN_FILES = 1 << 20
"""Stands for no limit: Linux's default maximum (fs.nr_open)."""


def open_file_limit() -> int:
    """Returns the current limit of open files (the soft RLIMIT_NOFILE)."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


@functools.cache
def installed_version() -> str:
    """Returns the installed version of Lowtide, from the name of its metadata's folder on the import path.

    `importlib.metadata` finds it in the same way, but importing it takes 10 ms and 3 MB of memory, which a broker
    would keep. It is used where there is no such folder, as in an archive.
    """
    for place in sys.path:
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):
                if name.startswith(_FOLDER_BEGIN) and name.endswith(_FOLDER_END):
                    return name[len(_FOLDER_BEGIN) : -len(_FOLDER_END)]
    from importlib.metadata import version  # noqa: PLC0415 - large

    return version("lowtide")
