"""What a process asks of its system for itself."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator, Mapping


def environment() -> Mapping[str, str]:
    """The environment variables that the process was started with."""
    return dict(os.environ)


def host_name() -> str:
    """The name of this machine, which other machines may or may not know it by."""
    return socket.gethostname()


def read_some(descriptor: int) -> bytes:
    """What a terminal or pipe has, at most some bytes of it; empty at its end."""
    return os.read(descriptor, 64)


def standard_input(piece_bytes: int) -> Iterator[bytes]:
    """Standard input, in pieces of what is there, until its end. Errors: OSError."""
    while piece := os.read(0, piece_bytes):
        yield piece


def raise_open_file_limit() -> int:
    """Raise the limit of open files as far as it may go (RLIMIT_NOFILE). Returns the limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # A hard limit above what the kernel allows now: keep what there is.
            return soft
    return hard


UNLIMITED_OPEN_FILES = 1 << 20
"""What stands for no limit: the largest that Linux allows by default (fs.nr_open)."""


def open_file_limit() -> int:
    """The limit of open files in force (the soft RLIMIT_NOFILE)."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
