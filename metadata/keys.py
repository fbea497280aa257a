"""The keys of the metadata store.

| key under the prefix | value | lifetime |
|---|---|---|
| `cluster_id` | text | for ever, created once |
| `brokers/<id>` | `BrokerRecord` | with the broker's lease; its create revision is the broker epoch |
| `known_brokers/<id>` | `BrokerRecord` of its last registration | from the first registration to unregistration |
| `shutdown/<id>` | its broker epoch | with that broker's lease; it wants to stop, its leaderships move first |
| `offline/<id>` | map of topic id to numbers | with that broker's lease; its replicas in failed log directories |
| `registrations/<id>` | `RegistrationRecord` | for ever, a larger number with each start |
| `stale/<id>/<number, twenty digits>` | numbers by topic id | until no ISR is so old; replicas that lost data |
| `unclean_starts/<id>` | registration number | for ever, rewritten at each start that may have lost unsynced data |
| `features` | `FeaturesRecord` | for ever |
| `history` | `HistoryRecord` | for ever, a new one with each recovery |
| `witnesses/<id>` | number | for ever, rewritten soon after the broker acts on a change: an old store lacks it |
| `suspension` | `SuspensionRecord` | from the detection that the store was restored until a recovery |
| `controller` | `ControllerRecord` | with that broker's lease; its create revision fences controller writes |
| `controller_epoch` | number | for ever, one more per election |
| `topics/<name>` | `TopicRecord` | until the topic is deleted |
| `topic_ids/<topic id>` | topic name | with its topic |
| `deleted_topics/<topic id>` | topic name | from the deletion of the topic; the oldest of very many are swept |
| `parts/<topic id>/<number, six digits>` | `PartitionRecord` | with its topic; without one it is invisible and swept |
| `config/topic/<name>` | map of strings | with its topic |
| `config/broker/<id>`, `config/broker-default` | map of strings | while set: for one broker, for all |
| `config/client-metrics/<name>` | map of strings | while the client metrics subscription exists |
| `config/group/<id>` | map of strings | while set, whether or not the group exists |
| `quotas/<entity>` | map of strings: quotas and their limits | while set for that user, client id or address |
| `scram/<mechanism>/<user>` | `ScramRecord` | until it is deleted; verifies a password without containing it |
| `scram_secret` | `ScramSecretRecord` | for ever, created with the first credential |
| `producer_ids/next` | number | for ever, one block more per allocation |
| `acls/<hash of the value>` | `AclRecord` | until the rule is removed |
| `acl_change` | `AclChangeRecord` | from the commit of a large change until each rule is written or deleted |
| `tokens/<hash of the HMAC>` | `TokenRecord` | until the token is removed, or has expired and is swept |
| `standing/<erasure id, hexadecimal>` | `StandingRecord` | until it has ended and is swept; in no copy or backup |
| `adoption` | `1` | while topics found on disk are being adopted |

Partitions are stored under the topic's **id**, so that a topic deleted and created again can't revive the old state.
Topic names consist of letters, digits, `.`, `_` and `-`, so a name never contains the separator. The id of a group may,
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
"""The common prefix of both kinds of broker configuration keys."""

GROUP_CONFIGS: Final = b"config/group/"
CLIENT_METRICS: Final = b"config/client-metrics/"
CLIENT_QUOTAS: Final = b"quotas/"

SCRAM: Final = b"scram"
"""The common prefix of credentials and their secret."""

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
STANDING: Final = b"standing/"

CLUSTER_ID: Final = b"cluster_id"
FEATURES: Final = b"features"
HISTORY: Final = b"history"
SUSPENSION: Final = b"suspension"
CONTROLLER: Final = b"controller"
CONTROLLER_EPOCH: Final = b"controller_epoch"
NEXT_PRODUCER_ID: Final = b"producer_ids/next"
ADOPTION: Final = b"adoption"

TOMBSTONES_MAX: Final = 10_000
"""Deleted topics that are kept: about a megabyte of the store. The oldest beyond that are swept."""

_HASH_DIGITS: Final = 32
"""Hexadecimal digits of a hash: enough that no two rules or tokens collide."""

LASTING: Final = (CLUSTER_ID, HISTORY, CONTROLLER_EPOCH, NEXT_PRODUCER_ID, REGISTRATIONS, WITNESSES, SCRAM_SECRET)
"""Keys with these prefixes are never deleted."""


def broker(broker_id: BrokerId) -> bytes:
    """Returns the key of a broker's registration."""
    return BROKERS + b"%d" % broker_id


def known_broker(broker_id: BrokerId) -> bytes:
    """Returns the key of a broker's last registration."""
    return KNOWN_BROKERS + b"%d" % broker_id


def shutdown(broker_id: BrokerId) -> bytes:
    """Returns the key of a broker's request to stop."""
    return SHUTDOWNS + b"%d" % broker_id


def offline(broker_id: BrokerId) -> bytes:
    """Returns the key of a broker's replicas in failed log directories."""
    return OFFLINE + b"%d" % broker_id


def registration(broker_id: BrokerId) -> bytes:
    """Returns the key of a broker's registration count."""
    return REGISTRATIONS + b"%d" % broker_id


def witness(broker_id: BrokerId) -> bytes:
    """Returns the key of the revision up to which a broker has acted."""
    return WITNESSES + b"%d" % broker_id


def stale(broker_id: BrokerId, number: int) -> bytes:
    """Returns the key of the mark that the registration with this number left on replicas of a broker."""
    return STALE + b"%d/%020d" % (broker_id, number)


def unclean_start(broker_id: BrokerId) -> bytes:
    """Returns the key of a broker's last start that may have lost unsynced data."""
    return UNCLEAN_STARTS + str(broker_id).encode()


def parse_stale(key: bytes) -> tuple[BrokerId, int]:
    """Parses a `stale` key. Errors: ValueError."""
    broker_id, _, number = key.removeprefix(STALE).partition(b"/")
    return int(broker_id), int(number)


def topic(name: str) -> bytes:
    """Returns the key of a topic's record."""
    return TOPICS + name.encode()


def topic_id(identity: TopicId) -> bytes:
    """Returns the key of the topic name for an id."""
    return TOPIC_IDS + topic_id_text(identity).encode()


def deleted_topic(identity: TopicId) -> bytes:
    """Returns the key of a topic's tombstone: only that allows a broker to remove a log of this topic id."""
    return DELETED_TOPICS + topic_id_text(identity).encode()


def parse_deleted_topic(key: bytes) -> TopicId:
    """Parses a `deleted_topic` key. Errors: ValueError."""
    return parse_topic_id(key.removeprefix(DELETED_TOPICS).decode())


def partition(identity: TopicId, number: int) -> bytes:
    """Returns the key of a partition's record."""
    return PARTITIONS + b"%s/%06d" % (topic_id_text(identity).encode(), number)


def partitions(identity: TopicId, numbers: Iterable[int]) -> list[bytes]:
    """Returns the keys of several partitions of a topic."""
    prefix = PARTITIONS + topic_id_text(identity).encode()
    return [b"%s/%06d" % (prefix, number) for number in numbers]


def topic_config(name: str) -> bytes:
    """Returns the key of a topic's configuration."""
    return TOPIC_CONFIGS + name.encode()


def broker_config(name: str) -> bytes:
    """Returns the key of a broker's configuration, by its id in decimal; an empty name stands for all brokers."""
    return BROKER_CONFIGS + (f"/{name}" if name else "-default").encode()


def parse_broker_config(key: bytes) -> str:
    """Parses a `broker_config` key. Errors: ValueError."""
    name = key.removeprefix(BROKER_CONFIGS)
    if name != b"-default" and not (name.startswith(b"/") and name[1:].isdigit()):
        raise ValueError(f"{key.decode(errors='replace')} in the metadata store doesn't name a broker")
    return name.removeprefix(b"/").removeprefix(b"-default").decode()


def group_config(group_id: str) -> bytes:
    """Returns the key of a group's configuration."""
    return GROUP_CONFIGS + group_id.encode()


def client_metrics(name: str) -> bytes:
    """Returns the key of a client metrics subscription."""
    return CLIENT_METRICS + name.encode()


def acl(value: bytes) -> bytes:
    """Returns the key of the access control rule with this value."""
    return ACLS + hashlib.sha256(value).hexdigest()[:_HASH_DIGITS].encode()


def is_acl(key: bytes) -> bool:
    """Returns whether this is the key of an access control rule or of a large change, not of another cluster."""
    name = key.removeprefix(ACLS)
    is_hash = len(name) == _HASH_DIGITS and all(digit in b"0123456789abcdef" for digit in name)
    return key == ACL_CHANGE or (key.startswith(ACLS) and is_hash)


def token(hmac: bytes) -> bytes:
    """Returns the key of the delegation token with this HMAC, without revealing it."""
    return TOKENS + hashlib.sha256(hmac).hexdigest()[:_HASH_DIGITS].encode()


def standing(erasure_id: bytes) -> bytes:
    """Returns the key of a standing erasure."""
    return STANDING + erasure_id.hex().encode()


def parse_standing(key: bytes) -> bytes:
    """Returns the erasure id of a `standing` key. Errors: ValueError."""
    return bytes.fromhex(key.removeprefix(STANDING).decode())


def client_quotas(entity: str) -> bytes:
    """Returns the key of the quotas of a user, client id or address, by its text (`broker.quotas.quota_entity`)."""
    return CLIENT_QUOTAS + entity.encode()


def scram(mechanism: ScramMechanism, user: str) -> bytes:
    """Returns the key of a user's credential for a mechanism."""
    return f"scram/{mechanism.text}/{user}".encode()


def parse_scram(key: bytes) -> tuple[ScramMechanism, str] | None:
    """Parses a `scram` key; None for an unknown mechanism."""
    mechanism, _, user = key.removeprefix(b"scram/").decode().partition("/")
    return (SCRAM_MECHANISMS[mechanism], user) if mechanism in SCRAM_MECHANISMS else None


def parse_partition(key: bytes) -> tuple[TopicId, int]:
    """Parses a `partition` key. Errors: ValueError."""
    identity, _, number = key.removeprefix(PARTITIONS).decode().partition("/")
    return parse_topic_id(identity), int(number)
