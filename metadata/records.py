"""What stands in the values of the metadata store: JSON, one struct per kind of key.

JSON because an operator reads it with `etcdctl` or `sqlite3`, and because fields can be added: an unknown field is
skipped, a missing one takes its default. Topic ids are in Kafka's text form.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch  # Read at run time, by msgspec.

T = TypeVar("T")

LOG_START_REPORTING_LEVEL: Final = 1
"""The metadata level from which on a broker reports its log starts when it fetches as a follower. Source: KIP-107."""

ELIGIBLE_LEADERS_LEVEL: Final = 2
"""The metadata level from which on a broker knows eligible leader replicas, and says how it ended. Source: KIP-966."""

FEATURE_LEVELS_LEVEL: Final = 3
"""The metadata level from which on a broker takes the levels of features from the metadata. Source: KIP-584."""

NEWEST_LEVEL: Final = FEATURE_LEVELS_LEVEL
"""The newest metadata level: what this version can do."""

NO_LEADER: BrokerId = -1
"""The leader of a partition that no replica can lead now."""


class MetadataCorruptError(ValueError):
    """A value in the metadata store that Lowtide can't have written; names the key."""


class NeededKeyError(MetadataCorruptError):
    """A key can't be read without which no broker may act."""


class Listener(msgspec.Struct, frozen=True, gc=False):
    """Where clients reach a broker: the listener's name, its advertised address, and how it is secured."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


class BrokerRecord(msgspec.Struct, frozen=True, gc=False):
    """A broker's registration. `incarnation` is new with every start of the process.

    `inter_broker_listener` names the listener where other brokers reach it, the first one if it is empty. `metadata_level` says what it
    can do (`LOG_START_REPORTING_LEVEL`, `ELIGIBLE_LEADERS_LEVEL`, `FEATURE_LEVELS_LEVEL`).
    """

    incarnation: str
    listeners: tuple[Listener, ...]
    rack: str | None = None
    inter_broker_listener: str = ""
    metadata_level: int = LOG_START_REPORTING_LEVEL


class RegistrationRecord(msgspec.Struct, frozen=True, gc=False):
    """How often a broker has registered (rule DR8): the last number that a start drew, and the last that was registered.

    A number is drawn before it is written anywhere else, and never again.
    """

    drawn: int = 0
    registered: int = 0


class FeaturesRecord(msgspec.Struct, frozen=True, gc=False):
    """What the whole cluster has agreed to do, and never takes back; and the levels of features that an operator has set.

    `log_start_reporting`: followers report their log starts (KIP-107). `eligible_leaders`: partitions have eligible leader replicas
    (KIP-966). `levels`: of features by their names (KIP-584); one that isn't there has the highest level that the brokers know.
    """

    log_start_reporting: int = 0
    eligible_leaders: int = 0
    levels: dict[str, int] = {}

    def level(self, name: str, highest: int) -> int:
        """The level at which the cluster uses a feature, of which the highest level is `highest`."""
        return min(self.levels.get(name, highest), highest)


class HistoryRecord(msgspec.Struct, frozen=True, gc=False):
    """Which life of the store this is.

    `history_id` is random; a recovery (`lowtide metadata recover`) makes another one.
    `raft_surplus`: below it the store was restored from a snapshot; see `MetadataStore.raft_surplus`. `previous_id` and
    `previous_revision` say from which history, and up to where, a recovery came.
    """

    history_id: str = ""
    raft_surplus: int = 0
    previous_id: str = ""
    previous_revision: int = 0


class SuspensionRecord(msgspec.Struct, frozen=True, gc=False):
    """That no broker may act on this store, for it was put back to an earlier state; why, and which broker found out."""

    reason: str
    broker_id: BrokerId


ReplicaNumbers: TypeAlias = dict[str, list[int]]
"""Some replicas of one broker: the partitions' numbers by topic id in text form."""


class ControllerRecord(msgspec.Struct, frozen=True, gc=False):
    """Which broker is controller, and the how-manieth election that was."""

    broker_id: BrokerId
    controller_epoch: int


class TopicRecord(msgspec.Struct, frozen=True, gc=False):
    """A topic: its id in text form and how many partitions belong to it."""

    topic_id: str
    partitions: int


class PartitionRecord(msgspec.Struct, frozen=True, gc=False):
    """Who has a partition, who leads it, who is in sync.

    `isr_epochs` has the broker epoch under which each in-sync replica is a member, in the order of `isr` (KIP-903). `partition_epoch`
    grows by one with every write. `adding` and `removing` belong to a reassignment (KIP-455). `elr` are the eligible
    leader replicas (KIP-966): not in sync, with all that is committed, as of the registrations in `elr_epochs`.
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


class AclRecord(msgspec.Struct, frozen=True, gc=False):
    """One rule of access control, with Kafka's numbers (`AccessControlEntryRecord`): what may be done to which resources, by whom.

    `resource_type`: 2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user. `pattern_type`: 3 literal, where the name
    `*` stands for all, or 4 for all names that begin so. `host` is an address or `*`. `permission`: 2 deny, 3 allow.
    """

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclChangeRecord(msgspec.Struct, frozen=True, gc=False):
    """A change of more rules than one transaction holds, in force from the moment on when it is written.

    `added` has the fields of `AclRecord`; `removed` the ends of the keys. Until the change is over, no other one is made.
    """

    added: tuple[tuple[int, str, int, str, str, int, int], ...] = ()
    removed: tuple[str, ...] = ()


class ScramRecord(msgspec.Struct, frozen=True, gc=False):
    """What checks a user's password in SCRAM (RFC 5802): the bytes are base64.

    The password can't be computed from it, only tried.
    """

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Without the keys."""
        return f"ScramRecord(iterations={self.iterations})"


class ScramSecretRecord(msgspec.Struct, frozen=True, gc=False):
    """What the salts of users are made with that don't exist, so that a client can't find out which do."""

    secret: bytes

    def __repr__(self) -> str:
        """Without the secret."""
        return "ScramSecretRecord()"


class TokenRecord(msgspec.Struct, frozen=True, gc=False):
    """A delegation token (KIP-48), without its HMAC: that is computed of the id with the brokers' secret.

    Principals are texts as `User:alice`. Times are milliseconds since 1970: the token ends at `expires_ms`, which a
    renewal sets, and at
    `ends_ms` at the latest. `credentials` check the HMAC as a password, by the names of SCRAM mechanisms.
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
        """From when on it can't be used."""
        return min(self.expires_ms, self.ends_ms)


_encoder = msgspec.json.Encoder()


def encode(record: msgspec.Struct | dict[str, str] | ReplicaNumbers | int) -> bytes:
    """The value that stands for `record`."""
    return _encoder.encode(record)


def decode(key: bytes, value: bytes, kind: type[T]) -> T:
    """Read a value. Errors: MetadataCorruptError, with the key."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError as error:
        message = f"{key.decode(errors='replace')} in the metadata store is not a {kind.__name__}: {error}"
        raise MetadataCorruptError(message) from error
