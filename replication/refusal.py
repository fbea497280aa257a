"""Why something that was asked for is not done."""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.protocol.errors import ErrorCode  # Read at run time, by msgspec.

MAX_MESSAGE_CHARACTERS: Final = 2000
"""A refusal's sentence may quote what a client sent, and a text on the wire has at most 32,767 bytes."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why something is not done: the code for the answer, and one sentence, cut where it is very long."""

    error_code: ErrorCode
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MAX_MESSAGE_CHARACTERS:
            msgspec.structs.force_setattr(self, "message", f"{self.message[:MAX_MESSAGE_CHARACTERS]}...")
