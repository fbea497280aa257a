"""The names of the keys in the metadata store, and back.

| key under the prefix | value | lives |
|---|---|---|
| `cluster_id` | text | for ever, made once |
| `brokers/<id>` | `BrokerRecord` | with the broker's lease; its create revision is the broker epoch |
| `sole_broker` | broker id | with that broker's lease; keeps other brokers out while there is no replication between brokers |
| `controller` | `ControllerRecord` | with that broker's lease; its create revision is the fence of controller writes |
| `controller_epoch` | number | for ever, one more per election |
| `topics/<name>` | `TopicRecord` | until the topic is deleted |
| `topic_ids/<topic id>` | topic name | with its topic |
| `parts/<topic id>/<number, six digits>` | `PartitionRecord` | with its topic; without one it is invisible and is swept |
| `config/topic/<name>` | map of strings | with its topic |
| `config/broker/<id>`, `config/broker-default` | map of strings | while anything is set: of one broker, of all |
| `producer_ids/next` | number | for ever, one block more per grant |
| `adoption` | `1` | while topics are being taken over that were found on disk |

Partitions stand under the topic's **id**, so that a topic deleted and made anew can't revive the state of the old one. Topic names
consist of letters, digits, `.`, `_` and `-`, so a name never holds the separator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.protocol.types import parse_topic_id, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.protocol.types import BrokerId, TopicId

BROKERS: Final = b"brokers/"
TOPICS: Final = b"topics/"
TOPIC_IDS: Final = b"topic_ids/"
PARTITIONS: Final = b"parts/"
TOPIC_CONFIGS: Final = b"config/topic/"
BROKER_CONFIGS: Final = b"config/broker"
"""What both keys of a broker's configuration begin with."""

CLUSTER_ID: Final = b"cluster_id"
CONTROLLER: Final = b"controller"
SOLE_BROKER: Final = b"sole_broker"
CONTROLLER_EPOCH: Final = b"controller_epoch"
NEXT_PRODUCER_ID: Final = b"producer_ids/next"
ADOPTION: Final = b"adoption"


def broker(broker_id: BrokerId) -> bytes:
    """The registration of a broker."""
    return BROKERS + b"%d" % broker_id


def topic(name: str) -> bytes:
    """The record of a topic."""
    return TOPICS + name.encode()


def topic_id(identity: TopicId) -> bytes:
    """The name of the topic with this id."""
    return TOPIC_IDS + topic_id_text(identity).encode()


def partition(identity: TopicId, number: int) -> bytes:
    """The state of one partition."""
    return PARTITIONS + b"%s/%06d" % (topic_id_text(identity).encode(), number)


def partitions(identity: TopicId, numbers: Iterable[int]) -> list[bytes]:
    """`partition` of many of a topic."""
    prefix = PARTITIONS + topic_id_text(identity).encode()
    return [b"%s/%06d" % (prefix, number) for number in numbers]


def topic_config(name: str) -> bytes:
    """What was set on a topic."""
    return TOPIC_CONFIGS + name.encode()


def broker_config(name: str) -> bytes:
    """What was set on a broker by its id in decimal; an empty name stands for what was set on all of them."""
    return BROKER_CONFIGS + (f"/{name}" if name else "-default").encode()


def parse_broker_config(key: bytes) -> str:
    """The inverse of `broker_config`."""
    return key.removeprefix(BROKER_CONFIGS).removeprefix(b"/").removeprefix(b"-default").decode()


def parse_partition(key: bytes) -> tuple[TopicId, int]:
    """The inverse of `partition`. Errors: ValueError."""
    identity, _, number = key.removeprefix(PARTITIONS).decode().partition("/")
    return parse_topic_id(identity), int(number)
