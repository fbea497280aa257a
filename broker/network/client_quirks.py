"""Requests that a standard client sends wrong, and that Kafka reads all the same.

Bytes behind the fields of a request are passed over, and counted: they may mean that the client encodes another
version. librdkafka (AlterUserScramCredentials) and kafka-go (DescribeAcls) are known to write empty tagged fields once
too often. Responses, what is in a request, and what is kept in files must end where their fields do.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

SURPLUS_SERIES_MAX: Final = 200
"""Pairs of request and software that are counted by themselves."""

_PADDING = bytes(4)


def without_array_padding(buffer: Any, position: int, stop: int, plain_bytes: int) -> tuple[Any, int, int]:
    """A Metadata request for all topics as librdkafka writes it in flexible versions: null takes the four bytes kept for a count.

    `plain_bytes` is the length of such a body when null takes one byte. Returns the buffer and the bounds of the body to decode.
    Seen from librdkafka 2.16 (confluent-kafka, kcat).
    """
    if stop - position == plain_bytes + 3 and buffer[position : position + 4] == _PADDING:
        return b"\0" + bytes(buffer[position + 4 : stop]), 0, plain_bytes
    return buffer, position, stop


class SurplusBytes:
    """Requests with bytes behind their fields, which are passed over as Kafka does, by their names and the clients' software.

    A reader says with `see` that it has met some; the connection then says whose they are (`note`).
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.met = 0
        """How many were behind the request that was read last; 0 once that is noted."""

    def see(self, count: int) -> None:
        """So many bytes are behind the fields of the request that is being read."""
        self.met = count

    def note(self, request: str, software: str) -> bool:
        """Count a request that had some.

        Returns whether it is the first of its kind. Software has no name where too many have one.
        """
        self.met = 0
        key = request, software
        if key not in self.counts and len(self.counts) >= SURPLUS_SERIES_MAX:
            key = request, ""
        self.counts[key] += 1
        return self.counts[key] == 1
