"""What consumers say to each other inside JoinGroup and SyncGroup, as far as a coordinator has to know it.

A subscription is `version int16 | topics: count int32, then strings | user data | ...`. Every version begins so, and nothing behind the
topics is read. Source: Kafka's ConsumerProtocolSubscription and `ConsumerProtocol`.

    >>> subscribed_topics(bytes.fromhex("0003 00000002 0001 61 0002 6262 ffffffff"))
    ('a', 'bb')
"""

from __future__ import annotations

import struct
from typing import Final

from lowtide.protocol.errors import ProtocolError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members are consumers."""

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> tuple[str, ...]:
    """The topics of a subscription.

    Errors: ProtocolError for bytes that are none.
    """
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(subscription)
        if version < 0 or not 0 <= count <= len(subscription) // _LENGTH.size:
            message = f"a subscription of version {version} with {count} topics in {len(subscription)} bytes"
            raise ProtocolError(message)
        position = _VERSION_AND_COUNT.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(subscription, position)
            position += _LENGTH.size
            if not 0 <= length <= len(subscription) - position:
                message = f"a topic of {length} bytes at {position} of a subscription of {len(subscription)}"
                raise ProtocolError(message)
            topics.append(subscription[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError) as error:
        message = f"not a subscription: {error}"
        raise ProtocolError(message) from error
    return tuple(topics)
