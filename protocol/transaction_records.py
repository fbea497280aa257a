"""The records of `__transaction_state`: one for each transactional id, the newest of which is its whole state.

Key and value each begin with an int16: in the key it is the type of the record, 0, in the value the version of what
follows, 0 or 1. What is written is version 1, as in Kafka with `transaction.version` 1 or above. A null value takes the
transactional id back.

    >>> key, value = encode_transaction("t", None)
    >>> key.hex(" "), value
    ('00 00 00 01 74', None)

Source: Kafka's TransactionLogKey/Value, `TransactionLog`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Annotated, ClassVar, Final, Protocol

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.group_records import CoordinatorRecord
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Int64, Message, String, Tagged, Versions
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition

TRANSACTION_TYPE: Final = 0
TRANSACTION_VERSION: Final = 1

_INT16 = struct.Struct(">h")
_KEY_TYPE = _INT16.pack(TRANSACTION_TYPE)
_VALUE_VERSION = _INT16.pack(TRANSACTION_VERSION)
_VALUE_START = struct.Struct(">hqhib")
"""Version, producer id, producer epoch, timeout, status."""

_TIMES = struct.Struct(">qq")
_TAGGED_INT16 = struct.Struct(">BBh")
"""A tagged field: its tag, its size, and what it says."""

_CLIENT_VERSION_TAG: Final = 2
_LAST_EPOCH_TAG: Final = 4

REMEMBERED_PARTITIONS: Final = 1024
REMEMBERED_PARTITIONS_MAX: Final = 16
"""The encoded partitions of so many transactions are kept, of those with no more than these: producers write to the same ones again and
again. Some megabytes at most."""


class TransactionLogKey(ApiMessage, kw_only=True):
    """Which transactional id."""

    VERSIONS: ClassVar = Versions("0")
    FLEXIBLE: ClassVar = Versions("1+")

    transactional_id: String


class PartitionsSchema(Message, kw_only=True):
    """Partitions of one topic that a transaction writes to."""

    topic: String
    partition_ids: list[Int32]


class TransactionLogValue(ApiMessage, kw_only=True):
    """The state of a transactional id. Times are wall-clock milliseconds."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("1+")

    producer_id: Int64
    previous_producer_id: Annotated[Int64, Tagged(0, "1+")] = NO_PRODUCER_ID
    next_producer_id: Annotated[Int64, Tagged(1, "1+")] = NO_PRODUCER_ID
    producer_epoch: Int16
    next_producer_epoch: Annotated[Int16, Tagged(3, "1+")] = NO_PRODUCER_EPOCH
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: list[PartitionsSchema] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Annotated[Int16, Tagged(_CLIENT_VERSION_TAG, "1+")] = 0
    last_producer_epoch: Annotated[Int16, Tagged(_LAST_EPOCH_TAG, "1+")] = NO_PRODUCER_EPOCH
    """Kafka up to 4.4 doesn't keep it, and skips it as it does any tag that it doesn't know."""


class TransactionRecord(msgspec.Struct, frozen=True):
    """A record of a transactional id; `value` is None in a tombstone."""

    transactional_id: str
    value: TransactionLogValue | None


class TransactionState(Protocol):
    """What `TransactionLogValue` says, as a coordinator has it. Without partitions there is no list of them."""

    @property
    def transactional_id(self) -> str: ...
    @property
    def producer_id(self) -> ProducerId: ...
    @property
    def producer_epoch(self) -> ProducerEpoch: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def state(self) -> int: ...
    @property
    def partitions(self) -> frozenset[TopicPartition]: ...
    @property
    def updated_ms(self) -> int: ...
    @property
    def started_ms(self) -> int: ...
    @property
    def client_version(self) -> int: ...
    @property
    def last_producer_epoch(self) -> ProducerEpoch: ...


def encode_plain_transaction(transaction: TransactionState) -> CoordinatorRecord:
    """The record that keeps a transactional id whose producer id isn't changing, as nearly all are, and that of nearly every step.

    What the codec makes, in a fraction of the time: a transaction writes four of these.
    """
    name = transaction.transactional_id.encode()
    partitions = transaction.partitions
    listed = (
        _remembered_partitions(partitions)
        if len(partitions) <= REMEMBERED_PARTITIONS_MAX
        else _encode_partitions(partitions)
    )
    value = (
        _VALUE_START.pack(
            TRANSACTION_VERSION,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
        )
        + listed
        + _TIMES.pack(transaction.updated_ms, transaction.started_ms)
    )
    count, tagged = 0, b""
    if transaction.client_version:
        count, tagged = 1, _TAGGED_INT16.pack(_CLIENT_VERSION_TAG, 2, transaction.client_version)
    if transaction.last_producer_epoch != NO_PRODUCER_EPOCH:
        count, tagged = count + 1, tagged + _TAGGED_INT16.pack(_LAST_EPOCH_TAG, 2, transaction.last_producer_epoch)
    return _KEY_TYPE + _INT16.pack(len(name)) + name, value + bytes((count,)) + tagged


def _encode_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    """The compact array of topics with their partitions, or null."""
    if not partitions:
        return b"\0"
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    out = bytearray(unsigned_varint(len(topics) + 1))
    for topic, numbers in topics.items():
        name = topic.encode()
        out += unsigned_varint(len(name) + 1) + name + unsigned_varint(len(numbers) + 1)
        out += struct.pack(f">{len(numbers)}ix", *numbers)
    return bytes(out)


_remembered_partitions = lru_cache(REMEMBERED_PARTITIONS)(_encode_partitions)


def encode_transaction(transactional_id: str, value: TransactionLogValue | None) -> CoordinatorRecord:
    """The record that keeps a transactional id's state, or with None the one that takes it back."""
    name = transactional_id.encode()
    key = _KEY_TYPE + _INT16.pack(len(name)) + name
    if value is None:
        return key, None
    return key, _VALUE_VERSION + codec_for(TransactionLogValue, TRANSACTION_VERSION).encode(value)


def decode_transaction(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """What a record says; None for a type that isn't known here.

    Errors: ProtocolError for bytes that are no such record, and for a version that isn't known.
    """
    if key is None or len(key) < _INT16.size:
        raise ProtocolError("a record of a coordinator without a type")
    if _INT16.unpack_from(key)[0] != TRANSACTION_TYPE:
        return None
    name = codec_for(TransactionLogKey, 0).decode(key, _INT16.size, len(key)).transactional_id
    if value is None:
        return TransactionRecord(name, None)
    version = _INT16.unpack_from(value)[0] if len(value) >= _INT16.size else -1
    if version not in TransactionLogValue.VERSIONS:
        raise ProtocolError(f"TransactionLogValue of version {version}, which isn't known")
    return TransactionRecord(name, codec_for(TransactionLogValue, version).decode(value, _INT16.size, len(value)))
