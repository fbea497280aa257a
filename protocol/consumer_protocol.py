"""The subscriptions and assignments of consumers in JoinGroup and SyncGroup, as far as a coordinator needs them.

A subscription is `version int16 | topics: count int32, then strings | user data | ...`; of classic groups only the
topics are read. Members of consumer groups with the classic protocol are read completely, and get an assignment:
`version int16 | topics with partitions | user data`. A version above 3 is read as 3, without its additional fields.
Source: Kafka's ConsumerProtocolSubscription, ConsumerProtocolAssignment and `ConsumerProtocol`.

    >>> subscribed_topics(bytes.fromhex("0003 00000002 0001 61 0002 6262 ffffffff"))
    ('a', 'bb')
    >>> parse_assignment(encode_assignment(1, [("a", [0, 2])])).topics
    (('a', (0, 2)),)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar

import msgspec

from lowtide.protocol.errors import ProtocolError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of consumers' groups."""

VERSION_MAX: Final = 3
OWNED_PARTITIONS_SINCE: Final = 1
GENERATION_SINCE: Final = 2
RACK_SINCE: Final = 3

T = TypeVar("T")

TopicPartitionRows: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_VERSION_AND_COUNT = struct.Struct(">hi")


def subscribed_topics(subscription: bytes) -> tuple[str, ...]:
    """Returns the topics of a subscription. Errors: ProtocolError for invalid bytes."""
    reader = _Reader(subscription)
    _version(reader)
    return reader.array(reader.name, _INT16.size)


class Subscription(msgspec.Struct, frozen=True):
    """A subscription: topics, owned partitions and rack."""

    version: int
    topics: tuple[str, ...]
    owned: TopicPartitionRows = ()
    rack_id: str | None = None


class ParsedAssignment(msgspec.Struct, frozen=True):
    """An assignment, with the user data of the assignor."""

    topics: TopicPartitionRows
    user_data: bytes | None


class _Reader:
    """Reads consecutive values. Errors: ProtocolError."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0

    def int16(self) -> int:
        value: int = _INT16.unpack(self._take(_INT16.size))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self._take(_INT32.size))[0]
        return value

    def text(self) -> str | None:
        length = self.int16()
        try:
            return None if length < 0 else self._take(length).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"not a text: {error}") from error

    def name(self) -> str:
        name = self.text()
        if name is None:
            raise ProtocolError("a topic without a name")
        return name

    def blob(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._take(length)

    def array(self, read: Callable[[], T], least_bytes: int) -> tuple[T, ...]:
        """Reads an array whose members have at least `least_bytes`, so a count cannot exceed the content."""
        count = self.int32()
        if not 0 <= count <= (len(self._content) - self._position) // least_bytes:
            raise ProtocolError(f"{count} members in {len(self._content) - self._position} bytes")
        return tuple(read() for _ in range(count))

    def topic_partitions(self) -> TopicPartitionRows:
        return self.array(lambda: (self.name(), self.array(self.int32, _INT32.size)), _INT16.size + _INT32.size)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._content):
            raise ProtocolError(f"{len(self._content)} bytes end within a value at {self._position}")
        taken = self._content[self._position : end]
        self._position = end
        return taken


def _version(reader: _Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise ProtocolError(f"version {version}")
    return min(version, VERSION_MAX)


def parse_subscription(content: bytes) -> Subscription:
    """Parses a subscription. Errors: ProtocolError for invalid bytes."""
    reader = _Reader(content)
    version = _version(reader)
    topics = reader.array(reader.name, _INT16.size)
    reader.blob()
    owned = reader.topic_partitions() if version >= OWNED_PARTITIONS_SINCE else ()
    if version >= GENERATION_SINCE:
        reader.int32()
    rack_id = reader.text() if version >= RACK_SINCE else None
    return Subscription(version, topics, owned, rack_id)


def parse_assignment(content: bytes) -> ParsedAssignment:
    """Parses an assignment. Errors: ProtocolError for invalid bytes."""
    reader = _Reader(content)
    _version(reader)
    topics = reader.topic_partitions()
    return ParsedAssignment(topics, reader.blob())


def encode_assignment(version: int, topics: Iterable[tuple[str, Iterable[int]]]) -> bytes:
    """Encodes an assignment without user data."""
    rows = []
    for topic, partitions in topics:
        name, numbers = topic.encode(), list(partitions)
        rows.append(_INT16.pack(len(name)) + name + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return _VERSION_AND_COUNT.pack(version, len(rows)) + b"".join(rows) + _INT32.pack(-1)
