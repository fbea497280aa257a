"""The words that every layer shares: names for look-alike integers, topic-partitions and topic ids.

The aliases cost nothing at run time and say in a signature which integer is meant. Offsets are log offsets, never byte
places: a byte place in a file is a `FilePosition`.
"""

from __future__ import annotations

import base64
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
"""Sixteen bytes, as on the wire."""

ZERO_TOPIC_ID: TopicId = bytes(16)
"""Stands for "no topic id" on the wire."""

TOPIC_IDS_REMEMBERED: Final = 256
"""Whose text was parsed last."""

NO_LEADER_EPOCH: LeaderEpoch = -1
NO_PRODUCER_ID: ProducerId = -1
NO_PRODUCER_EPOCH: ProducerEpoch = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
UNKNOWN_OFFSET: Offset = -1


class TopicPartition(NamedTuple):
    """One partition of a topic. Equal to, and hashed as, the plain tuple `(topic, partition)`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """`topic-partition`, which is also the name of its folder on disk."""
        return f"{self.topic}-{self.partition}"


def topic_id_text(topic_id: TopicId) -> str:
    """The URL-safe base64 form without padding, as Kafka writes topic ids in `partition.metadata` and in its tools."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")


@lru_cache(maxsize=TOPIC_IDS_REMEMBERED)
def parse_topic_id(text: str) -> TopicId:
    """The inverse of `topic_id_text`. The metadata name a topic by it in the key of each of its partitions.

    Errors: ValueError when the text isn't sixteen bytes of URL-safe base64.
    """
    topic_id = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(topic_id) != len(ZERO_TOPIC_ID):
        raise ValueError(f"{text!r} is not a topic id: {len(topic_id)} bytes instead of 16")
    return topic_id
