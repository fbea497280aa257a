"""Malformed requests of common clients that Kafka accepts.

Bytes behind the fields of a request are ignored and counted, because they may mean that the client encodes another
version. librdkafka (AlterUserScramCredentials) and kafka-go (DescribeAcls) write empty tagged fields twice. Responses,
structs within a request, and files must end with their fields.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any, Final

from lowtide.protocol.headers import REQUEST_HEADER_BYTES_MIN

SURPLUS_SERIES_MAX: Final = 200
"""The most pairs of request and software that are counted separately."""

_PADDING = bytes(4)
_CLIENT_ID_LENGTH = struct.Struct(">h")


def without_array_padding(buffer: Any, start: int, stop: int, plain_bytes: int) -> tuple[Any, int, int]:
    """Returns a Metadata request for all topics, and its bounds, without librdkafka's padding.

    In flexible versions its null array takes the four bytes reserved for a count instead of one. `plain_bytes` is the
    length of the correct body. Seen from librdkafka 2.16 (confluent-kafka, kcat).
    """
    position = stop - plain_bytes - len(_PADDING) + 1
    id_end = start + REQUEST_HEADER_BYTES_MIN
    if (
        position - id_end - 1 == max(_CLIENT_ID_LENGTH.unpack_from(buffer, id_end - _CLIENT_ID_LENGTH.size)[0], 0)
        and buffer[position : position + len(_PADDING)] == _PADDING
    ):
        plain = b"".join((buffer[start:position], b"\0", buffer[position + len(_PADDING) : stop]))
        return plain, 0, len(plain)
    return buffer, start, stop


class SurplusBytes:
    """Counts requests with bytes behind their fields, which are ignored, by request and client software."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, request: str, software: str) -> bool:
        """Counts a request. Returns whether it is the first of its kind.

        The software is left out if there are too many kinds.
        """
        key = request, software
        if key not in self.counts and len(self.counts) >= SURPLUS_SERIES_MAX:
            key = request, ""
        self.counts[key] += 1
        return self.counts[key] == 1
