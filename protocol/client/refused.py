"""How an attempt to talk to a broker ends without success, as a value.

It imports next to nothing: commands need it before they connect.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from lowtide.protocol.errors import ErrorCode


class Refusal(Enum):
    """Why a client and a broker don't get on."""

    AUTHENTICATION = "authentication"
    """One side doesn't accept who the other is. Trying again changes nothing."""
    VERSION = "version"
    """There is no version of an API that both speak."""
    ANSWER = "answer"
    """The broker answered with an error code."""


class Refused(NamedTuple):
    """The end of an attempt, as a value: shells raise their own errors.

    `code` is the broker's error code, for `Refusal.ANSWER`.
    """

    kind: Refusal
    reason: str
    code: int = ErrorCode.NONE
