"""The records of `__transaction_state`: the newest record of a transactional id is its whole state.

Keys and values are those of `coordinator_records`: type 0, versions 0 and 1. Version 1 is written, as in Kafka with
`transaction.version` 1 or above.

    >>> key, value = encode_transaction("t", None)
    >>> key.hex(" "), value
    ('00 00 00 01 74', None)

Source: Kafka's TransactionLogKey/Value, `TransactionLog`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Annotated, Final, Protocol

import msgspec

from lowtide.protocol.coordinator_records import (
    INT16,
    CoordinatorRecord,
    decode_group_key,
    decode_value,
    encode_group_key,
    encode_value,
    record_type,
)
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Int64, Message, String, Tagged, versions
from lowtide.protocol.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition

TRANSACTION_TYPE: Final = 0
TRANSACTION_VERSION: Final = 1

_KEY_TYPE = INT16.pack(TRANSACTION_TYPE)
_VALUE_START = struct.Struct(">hqhib")
"""Version, producer id, producer epoch, timeout, status."""

_TIMES = struct.Struct(">qq")
_TAGGED_INT16 = struct.Struct(">BBh")
"""A tagged field: its tag, its size, and its value."""

_CLIENT_VERSION_TAG: Final = 2
_LAST_EPOCH_TAG: Final = 4

REMEMBERED_PARTITIONS: Final = 1024
REMEMBERED_PARTITIONS_MAX: Final = 16
"""The number of cached encodings of partitions, and their maximum number: producers use the same ones repeatedly. Some
megabytes in total."""


class PartitionsSchema(Message, kw_only=True):
    """Partitions of one topic in a transaction."""

    topic: String
    partition_ids: list[Int32]


@versions("0-1", flexible="1+")
class TransactionLogValue(ApiMessage, kw_only=True):
    """The state of a transactional id. Times are wall-clock milliseconds."""

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
    """Kafka up to 4.4 does not store it, and skips the unknown tag."""


class TransactionRecord(msgspec.Struct, frozen=True):
    """A transactional id; `value` is None in a tombstone."""

    transactional_id: str
    value: TransactionLogValue | None


class StoredTransaction(Protocol):
    """The state of `TransactionLogValue` in a coordinator. An empty set of partitions is stored as null."""

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


def encode_plain_transaction(transaction: StoredTransaction) -> CoordinatorRecord:
    """Encodes a transactional id whose producer id is not changing, as in nearly every step.

    The result equals that of the codec, in a fraction of the time: a transaction writes four of these.
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
    return _KEY_TYPE + INT16.pack(len(name)) + name, value + bytes((count,)) + tagged


def _encode_partitions(partitions: frozenset[TopicPartition]) -> bytes:
    """Encodes the compact array of topics with their partitions, or null."""
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
    """Encodes the state of a transactional id, or a tombstone for None."""
    key = encode_group_key(TRANSACTION_TYPE, transactional_id, None)
    return key, None if value is None else encode_value(value, TRANSACTION_VERSION)


def decode_transaction(key: bytes | None, value: bytes | None) -> TransactionRecord | None:
    """Decodes a record; returns None for an unknown type.

    Errors: ProtocolError for invalid bytes, and for an unknown version.
    """
    if record_type(key) != TRANSACTION_TYPE or key is None:
        return None
    name, _ = decode_group_key(key, is_named=False)
    return TransactionRecord(name, decode_value(TransactionLogValue, value))
