"""Types of all layers: names for integers, topic partitions and topic ids.

The aliases cost nothing at run time and document signatures. Offsets are log offsets; a byte offset in a file is a
`FilePosition`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

Offset: TypeAlias = int
LeaderEpoch: TypeAlias = int
BrokerId: TypeAlias = int
BrokerEpoch: TypeAlias = int
ProducerId: TypeAlias = int
ProducerEpoch: TypeAlias = int
FilePosition: TypeAlias = int
TopicId: TypeAlias = bytes
"""Sixteen bytes."""

ZERO_TOPIC_ID: TopicId = bytes(16)
"""No topic id."""

TOPIC_IDS_REMEMBERED: Final = 256
"""The number of cached topic ids."""

NO_LEADER_EPOCH: LeaderEpoch = -1
NO_PRODUCER_ID: ProducerId = -1
NO_PRODUCER_EPOCH: ProducerEpoch = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
UNKNOWN_OFFSET: Offset = -1
UNKNOWN_BROKER_EPOCH: BrokerEpoch = -1


class TopicPartition(NamedTuple):
    """A partition of a topic. Equal to, and hashed as, the plain tuple `(topic, partition)`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """`topic-partition`, also the name of its folder."""
        return f"{self.topic}-{self.partition}"


def topic_id_text(topic_id: TopicId) -> str:
    """Returns the URL-safe base64 text of a topic id, without padding, as Kafka writes it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


def random_uuid(randbytes: Callable[[int], bytes]) -> TopicId:
    """Returns a random id (UUID version 4) whose text doesn't begin with a dash, which tools take for an option.

    Source: Kafka's `Uuid`.
    """
    while True:
        value = bytearray(randbytes(16))
        value[6] = value[6] & 0x0F | 0x40
        value[8] = value[8] & 0x3F | 0x80
        if not topic_id_text(bytes(value)).startswith("-"):
            return bytes(value)


@lru_cache(maxsize=TOPIC_IDS_REMEMBERED)
def parse_topic_id(text: str) -> TopicId:
    """Parses a topic id; the inverse of `topic_id_text`. Errors: ValueError for an invalid text."""
    topic_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(topic_id) != len(ZERO_TOPIC_ID):
        raise ValueError(f"{text!r} is not a topic id: {len(topic_id)} bytes instead of 16")
    return topic_id
