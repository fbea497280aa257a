"""Requests that a standard client sends wrong, and that Kafka reads all the same.

Kafka ignores bytes behind the end of a request; Lowtide closes the connection, because they mean that the client encodes another version.
What is let through here is let through by its exact form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.protocol.errors import ProtocolError

_PADDING = bytes(4)


def without_array_padding(buffer: Any, position: int, stop: int, plain_bytes: int) -> tuple[Any, int, int]:
    """A Metadata request for all topics as librdkafka writes it in flexible versions: null takes the four bytes kept for a count.

    `plain_bytes` is the length of such a body when null takes one byte. Returns the buffer and the bounds of the body to decode.
    Seen from librdkafka 2.16 (confluent-kafka, kcat).
    """
    if stop - position == plain_bytes + 3 and buffer[position : position + 4] == _PADDING:
        return b"\0" + bytes(buffer[position + 4 : stop]), 0, plain_bytes
    return buffer, position, stop


def with_surplus_tags(decode: Callable[[Any, int, int], Any]) -> Callable[[Any, int, int], Any]:
    """`decode` of a request behind which librdkafka writes the empty tagged fields of the request once more: a single zero.

    Seen from librdkafka 2.16 in AlterUserScramCredentials. Errors: those of `decode`.
    """

    def decode_tolerantly(buffer: Any, position: int, stop: int) -> Any:
        try:
            return decode(buffer, position, stop)
        except ProtocolError:
            if stop <= position or buffer[stop - 1] != 0:
                raise
        return decode(buffer, position, stop - 1)

    return decode_tolerantly
