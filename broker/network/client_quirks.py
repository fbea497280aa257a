"""Requests that a standard client sends wrong, and that Kafka reads all the same.

Bytes behind the fields of a request are passed over, and counted: they may mean that the client encodes another
version. librdkafka (AlterUserScramCredentials) and kafka-go (DescribeAcls) are known to write empty tagged fields once
too often. Responses, what is in a request, and what is kept in files must end where their fields do.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any, Final

from lowtide.protocol.headers import REQUEST_HEADER_BYTES_MIN

SURPLUS_SERIES_MAX: Final = 200
"""Pairs of request and software that are counted by themselves."""

_PADDING = bytes(4)
_CLIENT_ID_LENGTH = struct.Struct(">h")


def without_array_padding(buffer: Any, start: int, stop: int, plain_bytes: int) -> tuple[Any, int, int]:
    """Returns a Metadata request, and its bounds, without the padding that librdkafka writes into one for all topics.

    In flexible versions its null array takes the four bytes kept for a count. `plain_bytes` is the length of the body of
    such a request when null takes one byte. Seen from librdkafka 2.16 (confluent-kafka, kcat).
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
    """Requests with bytes behind their fields, which are passed over as Kafka does, by their names and the clients' software."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, request: str, software: str) -> bool:
        """Count a request that had some.

        Returns whether it is the first of its kind. Software has no name where too many have one.
        """
        key = request, software
        if key not in self.counts and len(self.counts) >= SURPLUS_SERIES_MAX:
            key = request, ""
        self.counts[key] += 1
        return self.counts[key] == 1
