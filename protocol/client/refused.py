"""The failure of an attempt to talk to a broker, as a value.

It has few imports, because commands need it before they connect.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from lowtide.protocol.errors import ErrorCode


class ClientFailureKind(Enum):
    """The kind of failure."""

    AUTHENTICATION = "authentication"
    """Authentication failed. A retry fails too."""
    VERSION = "version"
    """No version of an API is supported by both sides."""
    ANSWER = "answer"
    """The broker returned an error code."""
    MISROUTED = "misrouted"
    """Another broker has the address now. The client must bootstrap again (KIP-1242)."""


class ClientFailure(NamedTuple):
    """A failed attempt; shells raise their own errors.

    `code` is the broker's error code, for `RefusalKind.ANSWER`.
    """

    kind: ClientFailureKind
    reason: str
    code: int = ErrorCode.NONE
