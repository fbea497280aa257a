"""The values in the metadata store: JSON, one struct per kind of key.

An operator can read JSON with `etcdctl` or `sqlite3`, and fields can be added: an unknown field is skipped, a missing
one has its default. Topic ids are in Kafka's text form.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset  # Read at run time, by msgspec.
from lowtide.runtime.json_text import decode_json

T = TypeVar("T")

LOG_START_REPORTING_LEVEL: Final = 1
"""Metadata level of brokers that report their log starts when they fetch as followers. Source: KIP-107."""

ELIGIBLE_LEADERS_LEVEL: Final = 2
"""Metadata level of brokers that support eligible leader replicas and record how they ended. Source: KIP-966."""

FEATURE_LEVELS_LEVEL: Final = 3
"""Metadata level of brokers that read feature levels from the metadata. Source: KIP-584."""

ADDRESS_RANGES_LEVEL: Final = 4
"""The broker applies ACLs whose host is an address range (KIP-1276)."""

ERASURES_LEVEL: Final = 5
"""Metadata level of brokers that apply erasures of single records (docs/adr/0023)."""

NEWEST_LEVEL: Final = ERASURES_LEVEL
"""The metadata level of this version."""

NO_LEADER: BrokerId = -1
"""The leader of a partition that no replica can lead now."""


class MetadataCorruptError(ValueError):
    """A value in the metadata store that Lowtide can't have written; names the key."""


class NeededKeyError(MetadataCorruptError):
    """A key without which no broker may act can't be read."""


class Listener(msgspec.Struct, frozen=True, gc=False):
    """Where clients reach a broker: the listener's name, its advertised address, and its security protocol."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker's registration. `incarnation` is new for every process.

    `inter_broker_listener` names the listener for other brokers; empty means the first one. `metadata_level` is one of
    the levels above. `is_cordoned`: it takes no new partitions (KIP-1066); earlier versions ignore that.
    """

    incarnation: str
    listeners: tuple[Listener, ...]
    rack: str | None = None
    inter_broker_listener: str = ""
    metadata_level: int = LOG_START_REPORTING_LEVEL
    is_cordoned: bool = False


class RegistrationRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker's registration count (rule DR8): the last number drawn at a start, and the last one registered.

    A number is drawn before it is written anywhere else, and never drawn again.
    """

    drawn: int = 0
    registered: int = 0


class FeaturesRecord(msgspec.Struct, frozen=True, gc=False):
    """What all brokers have agreed on, for good; and the feature levels that an operator has set.

    `log_start_reporting`: followers report their log starts (KIP-107). `eligible_leaders`: partitions have eligible
    leader replicas (KIP-966). `levels`: by feature name (KIP-584); a missing one has the highest level that the brokers
    support. `required_level`: the metadata level without which no broker may register. From `ERASURES_LEVEL` on single
    records may be erased.
    """

    log_start_reporting: int = 0
    eligible_leaders: int = 0
    levels: dict[str, int] = {}
    required_level: int = 0

    def level(self, name: str, highest: int) -> int:
        """Returns the level of a feature whose highest supported level is `highest`."""
        return min(self.levels.get(name, highest), highest)


class HistoryRecord(msgspec.Struct, frozen=True, gc=False):
    """The identity of this history of the store.

    `history_id` is random; a recovery (`lowtide metadata recover`) creates a new one. Below `raft_surplus` the store
    was restored from a snapshot; see `MetadataStore.raft_surplus`. `previous_id` and `previous_revision` name the
    history that a recovery continues, and its end.
    """

    history_id: str = ""
    raft_surplus: int = 0
    previous_id: str = ""
    previous_revision: int = 0


class SuspensionRecord(msgspec.Struct, frozen=True, gc=False):
    """Blocks all brokers from this store, which was restored to an earlier state: the reason, and who found out."""

    reason: str
    broker_id: BrokerId


ReplicaNumbers: TypeAlias = dict[str, list[int]]
"""Some replicas of one broker: partition numbers by topic id in text form."""


class ControllerRecord(msgspec.Struct, frozen=True, gc=False):
    """Which broker is controller, and the number of its election."""

    broker_id: BrokerId
    controller_epoch: int


class TopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic: its id in text form and its number of partitions."""

    topic_id: str
    partitions: int


class PartitionRecord(msgspec.Struct, frozen=True, gc=False):
    """A partition: its replicas, leader and ISR.

    `isr_epochs` has the broker epoch under which each ISR member joined, in the order of `isr` (KIP-903).
    `partition_epoch` rises by one with every write. `adding` and `removing` belong to a reassignment (KIP-455). `elr`
    are the eligible leader replicas (KIP-966): out of sync, with everything committed, under the registrations in
    `elr_epochs`. `erasures_end` and `erasures_epoch` are where the last acknowledged erasure ends (exclusive), and its
    leader epoch; 0 and -1 without one.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    isr_epochs: tuple[BrokerEpoch, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    elr_epochs: tuple[BrokerEpoch, ...] = ()
    erasures_end: Offset = 0
    erasures_epoch: LeaderEpoch = -1


class AclRecord(msgspec.Struct, frozen=True, gc=False):
    """One access control rule, with Kafka's numbers (`AccessControlEntryRecord`).

    `resource_type`: 2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user. `pattern_type`: 3
    literal, where the name `*` means all, or 4 prefixed. `host` is an address or `*`. `permission`: 2 deny, 3 allow.
    """

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclChangeRecord(msgspec.Struct, frozen=True, gc=False):
    """A change of more rules than one transaction holds. It takes effect when it is written.

    `added` has the fields of `AclRecord`; `removed` has key suffixes. No other change starts before it is completed.
    """

    added: tuple[tuple[int, str, int, str, str, int, int], ...] = ()
    removed: tuple[str, ...] = ()


class ScramRecord(msgspec.Struct, frozen=True, gc=False):
    """What verifies a user's password in SCRAM (RFC 5802), with bytes in base64. It doesn't reveal the password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramRecord(iterations={self.iterations})"


class ScramSecretRecord(msgspec.Struct, frozen=True, gc=False):
    """The secret for salts of unknown users, so that clients can't find out which users exist."""

    secret: bytes

    def __repr__(self) -> str:
        return "ScramSecretRecord()"


class TokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A delegation token (KIP-48), without its HMAC, which is computed from the id with the brokers' secret.

    Principals are texts such as `User:alice`. Times are milliseconds since 1970: the token expires at `expires_ms`,
    which a renewal moves, and at `ends_ms` at the latest. `credentials` verify the HMAC as a password, by SCRAM
    mechanism.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    ends_ms: int
    credentials: dict[str, ScramRecord]

    @property
    def until_ms(self) -> int:
        """The time from which the token is invalid."""
        return min(self.expires_ms, self.ends_ms)


class StandingRecord(msgspec.Struct, frozen=True, gc=False):
    """A standing erasure: until it ends, records with its keys are erased when they return.

    Each digest is that of a key, made with the secret (`protocol/key_digest.py`). Whoever has both can test guesses
    of a key. So they are in no backup and no log, and are deleted with the record. Times are milliseconds since 1970.
    """

    topics: tuple[str, ...]
    patterns: tuple[str, ...]
    """Patterns of topic names, with the wildcards `*`, `?` and `[…]`."""
    commitment: bytes
    """That of the erasure, for the ledger."""
    principal: str
    begun_ms: int
    ends_ms: int
    secret: bytes
    digests: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"StandingRecord({len(self.digests)} keys)"


_encoder = msgspec.json.Encoder()


def encode(record: msgspec.Struct | dict[str, str] | ReplicaNumbers | int) -> bytes:
    """Returns the value that stores `record`."""
    return _encoder.encode(record)


def decode(key: bytes, value: bytes, kind: type[T]) -> T:
    """Returns the decoded value. Errors: MetadataCorruptError, with the key."""
    try:
        return decode_json(value, kind)
    except ValueError as error:
        message = f"{key.decode(errors='replace')} in the metadata store is not a {kind.__name__}: {error}"
        raise MetadataCorruptError(message) from error
