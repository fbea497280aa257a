"""The refusal of a request, with its error code."""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.errors import ErrorCode  # Read at run time, by msgspec.

MAX_MESSAGE_CHARACTERS: Final = 2000
"""A message may quote what a client sent, and a string in the protocol has at most 32,767 bytes."""


def cut_message(message: str | None) -> str | None:
    """Returns a message as an answer may have it: truncated if very long, None if it is empty."""
    if not message or len(message) <= MAX_MESSAGE_CHARACTERS:
        return message or None
    return f"{message[:MAX_MESSAGE_CHARACTERS]}..."


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a request is refused: the error code of the answer, and one sentence, truncated if very long."""

    error_code: ErrorCode
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE_CHARACTERS:
            msgspec.structs.force_setattr(self, "message", cut_message(self.message))
