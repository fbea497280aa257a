"""The names of the keys in the metadata store, and back.

| key under the prefix | value | lives |
|---|---|---|
| `cluster_id` | text | for ever, made once |
| `brokers/<id>` | `BrokerRecord` | with the broker's lease; its create revision is the broker epoch |
| `known_brokers/<id>` | `BrokerRecord` of its last registration | from the first registration until it is unregistered |
| `shutdown/<id>` | its broker epoch | with that broker's lease; it wants to stop, its leaderships move first |
| `offline/<id>` | map of topic id to numbers | with that broker's lease; its replicas in log directories that failed |
| `registrations/<id>` | `RegistrationRecord` | for ever, a larger number with each start |
| `stale/<id>/<number, twenty digits>` | map of topic id to numbers | until no ISR is so old; replicas that lost something |
| `unclean_starts/<id>` | number of the registration | for ever, written again with each start that may have lost what was not synced |
| `features` | `FeaturesRecord` | for ever |
| `history` | `HistoryRecord` | for ever, another one with each recovery |
| `witnesses/<id>` | number | for ever, written again soon after its broker has acted on a change: a store without it was put back |
| `suspension` | `SuspensionRecord` | from the moment on when the store was found to be put back, until a recovery |
| `controller` | `ControllerRecord` | with that broker's lease; its create revision is the fence of controller writes |
| `controller_epoch` | number | for ever, one more per election |
| `topics/<name>` | `TopicRecord` | until the topic is deleted |
| `topic_ids/<topic id>` | topic name | with its topic |
| `deleted_topics/<topic id>` | topic name | from the deletion of the topic on; the oldest of very many are swept |
| `parts/<topic id>/<number, six digits>` | `PartitionRecord` | with its topic; without one it is invisible and is swept |
| `config/topic/<name>` | map of strings | with its topic |
| `config/broker/<id>`, `config/broker-default` | map of strings | while anything is set: of one broker, of all |
| `config/client-metrics/<name>` | map of strings | while that subscription to clients' metrics is there |
| `config/group/<id>` | map of strings | while anything is set on that group, whether or not there is one |
| `quotas/<entity>` | map of strings: quotas and their limits | while any is set on that user, client id or address |
| `scram/<mechanism>/<user>` | `ScramRecord` | until it is deleted; what checks a password, and doesn't contain it |
| `scram_secret` | `ScramSecretRecord` | for ever, made with the first credential |
| `producer_ids/next` | number | for ever, one block more per grant |
| `acls/<hash of the value>` | `AclRecord` | until the rule is removed |
| `acl_change` | `AclChangeRecord` | from the commit of a change of many rules until each of them is written or deleted |
| `tokens/<hash of the HMAC>` | `TokenRecord` | until the token is removed, or has expired and is swept |
| `adoption` | `1` | while topics are being taken over that were found on disk |

Partitions stand under the topic's **id**, so that a topic deleted and created again can't revive the state of the old
one. Topic names consist of letters, digits, `.`, `_` and `-`, so a name never holds the separator; a group's id may,
and is the rest of its key; so is a user's name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from lowtide.protocol.scram import SCRAM_MECHANISMS
from lowtide.protocol.types import parse_topic_id, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.protocol.scram import ScramMechanism
    from lowtide.protocol.types import BrokerId, TopicId

BROKERS: Final = b"brokers/"
KNOWN_BROKERS: Final = b"known_brokers/"
TOPICS: Final = b"topics/"
TOPIC_IDS: Final = b"topic_ids/"
DELETED_TOPICS: Final = b"deleted_topics/"
PARTITIONS: Final = b"parts/"
TOPIC_CONFIGS: Final = b"config/topic/"
BROKER_CONFIGS: Final = b"config/broker"
"""What both keys of a broker's configuration begin with."""

GROUP_CONFIGS: Final = b"config/group/"
CLIENT_METRICS: Final = b"config/client-metrics/"
CLIENT_QUOTAS: Final = b"quotas/"

SCRAM: Final = b"scram"
"""What the keys of credentials begin with, and that of their secret."""

SCRAM_SECRET: Final = b"scram_secret"
SHUTDOWNS: Final = b"shutdown/"
OFFLINE: Final = b"offline/"
REGISTRATIONS: Final = b"registrations/"
STALE: Final = b"stale/"
UNCLEAN_STARTS: Final = b"unclean_starts/"
WITNESSES: Final = b"witnesses/"

ACLS: Final = b"acls/"
ACL_CHANGE: Final = b"acl_change"
TOKENS: Final = b"tokens/"

CLUSTER_ID: Final = b"cluster_id"
FEATURES: Final = b"features"
HISTORY: Final = b"history"
SUSPENSION: Final = b"suspension"
CONTROLLER: Final = b"controller"
CONTROLLER_EPOCH: Final = b"controller_epoch"
NEXT_PRODUCER_ID: Final = b"producer_ids/next"
ADOPTION: Final = b"adoption"

TOMBSTONES_MAX: Final = 10_000
"""Deleted topics that are remembered: about a megabyte of the store. The oldest beyond it are swept."""

_HASH_DIGITS: Final = 32
"""Of a hash so many hexadecimal digits: no two rules, and no two tokens, ever have the same."""

LASTING: Final = (CLUSTER_ID, HISTORY, CONTROLLER_EPOCH, NEXT_PRODUCER_ID, REGISTRATIONS, WITNESSES, SCRAM_SECRET)
"""What these begin with is never deleted."""


def broker(broker_id: BrokerId) -> bytes:
    """The registration of a broker."""
    return BROKERS + b"%d" % broker_id


def known_broker(broker_id: BrokerId) -> bytes:
    """What the last registration of a broker says of it."""
    return KNOWN_BROKERS + b"%d" % broker_id


def shutdown(broker_id: BrokerId) -> bytes:
    """The wish of a broker to stop."""
    return SHUTDOWNS + b"%d" % broker_id


def offline(broker_id: BrokerId) -> bytes:
    """A broker's replicas in failed log directories."""
    return OFFLINE + b"%d" % broker_id


def registration(broker_id: BrokerId) -> bytes:
    """How often a broker has registered."""
    return REGISTRATIONS + b"%d" % broker_id


def witness(broker_id: BrokerId) -> bytes:
    """Up to which revision a broker has acted."""
    return WITNESSES + b"%d" % broker_id


def stale(broker_id: BrokerId, number: int) -> bytes:
    """The mark that the registration with this number left on replicas of a broker."""
    return STALE + b"%d/%020d" % (broker_id, number)


def unclean_start(broker_id: BrokerId) -> bytes:
    """The last start of a broker that may have lost what was not synced."""
    return UNCLEAN_STARTS + str(broker_id).encode()


def parse_stale(key: bytes) -> tuple[BrokerId, int]:
    """The inverse of `stale`. Errors: ValueError."""
    broker_id, _, number = key.removeprefix(STALE).partition(b"/")
    return int(broker_id), int(number)


def topic(name: str) -> bytes:
    """The record of a topic."""
    return TOPICS + name.encode()


def topic_id(identity: TopicId) -> bytes:
    """The name of the topic with this id."""
    return TOPIC_IDS + topic_id_text(identity).encode()


def deleted_topic(identity: TopicId) -> bytes:
    """The tombstone of a topic: only it allows a broker to remove a log of this topic id."""
    return DELETED_TOPICS + topic_id_text(identity).encode()


def parse_deleted_topic(key: bytes) -> TopicId:
    """The inverse of `deleted_topic`. Errors: ValueError."""
    return parse_topic_id(key.removeprefix(DELETED_TOPICS).decode())


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
    """The inverse of `broker_config`. Errors: ValueError."""
    name = key.removeprefix(BROKER_CONFIGS)
    if name != b"-default" and not (name.startswith(b"/") and name[1:].isdigit()):
        message = f"{key.decode(errors='replace')} in the metadata store doesn't name a broker"
        raise ValueError(message)
    return name.removeprefix(b"/").removeprefix(b"-default").decode()


def group_config(group_id: str) -> bytes:
    """What was set on a group."""
    return GROUP_CONFIGS + group_id.encode()


def parse_group_config(key: bytes) -> str:
    """The inverse of `group_config`."""
    return key.removeprefix(GROUP_CONFIGS).decode()


def client_metrics(name: str) -> bytes:
    """A subscription to clients' metrics."""
    return CLIENT_METRICS + name.encode()


def parse_client_metrics(key: bytes) -> str:
    """The inverse of `client_metrics`."""
    return key.removeprefix(CLIENT_METRICS).decode()


def acl(value: bytes) -> bytes:
    """The rule of access control with this value. It is never written with another one."""
    return ACLS + hashlib.sha256(value).hexdigest()[:_HASH_DIGITS].encode()


def is_acl(key: bytes) -> bool:
    """Whether this is the key of a rule of access control, or of a change of many, whatever is in it; else it is another cluster's."""
    name = key.removeprefix(ACLS)
    return key == ACL_CHANGE or (key.startswith(ACLS) and len(name) == _HASH_DIGITS and _is_hexadecimal(name))


def token(hmac: bytes) -> bytes:
    """The delegation token with this HMAC, which the key doesn't show."""
    return TOKENS + hashlib.sha256(hmac).hexdigest()[:_HASH_DIGITS].encode()


def client_quotas(entity: str) -> bytes:
    """What is set on a user, client id or address, which has this text (`broker.quotas.quota_entity`)."""
    return CLIENT_QUOTAS + entity.encode()


def parse_client_quotas(key: bytes) -> str:
    """The inverse of `client_quotas`."""
    return key.removeprefix(CLIENT_QUOTAS).decode()


def scram(mechanism: ScramMechanism, user: str) -> bytes:
    """The credential of a user for a mechanism."""
    return f"scram/{mechanism.text}/{user}".encode()


def parse_scram(key: bytes) -> tuple[ScramMechanism, str] | None:
    """The inverse of `scram`; None for a mechanism that isn't known."""
    mechanism, _, user = key.removeprefix(b"scram/").decode().partition("/")
    return (SCRAM_MECHANISMS[mechanism], user) if mechanism in SCRAM_MECHANISMS else None


def _is_hexadecimal(text: bytes) -> bool:
    return all(each in b"0123456789abcdef" for each in text)


def parse_partition(key: bytes) -> tuple[TopicId, int]:
    """The inverse of `partition`. Errors: ValueError."""
    identity, _, number = key.removeprefix(PARTITIONS).decode().partition("/")
    return parse_topic_id(identity), int(number)
