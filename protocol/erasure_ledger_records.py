"""The records of `__lowtide_erasures`, the ledger of what was erased, and by whom.

Keys and values are those of `coordinator_records`, in version 0. Type 0 says which records of a partition a search
named; the leader of the partition writes it twice, before it appends the erasure and after the commit. Type 1 says that
one broker has removed the records from its files. Type 2 says how far a partition was searched for standing erasures.
No record contains a selector, only a commitment to it.

Source: docs/adr/0025-ledger-of-erasures.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from lowtide.protocol.compiler import codec_for
from lowtide.protocol.coordinator_records import INT16, CoordinatorRecord, decode_value, encode_value, record_type
from lowtide.protocol.schema import ApiMessage, Bool, Bytes, Int8, Int16, Int32, Int64, Message, String, Uuid, versions
from lowtide.protocol.types import UNKNOWN_OFFSET, LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMED_TYPE: Final = 0
CLEAN_TYPE: Final = 1
STANDING_TYPE: Final = 2

COMMITMENT_BYTES: Final = 32
"""The size of a commitment to a selector."""

RECORDS_MAX: Final = 10_000
"""The most records that one record of the ledger names. A search that found more has several parts."""


class SelectorKind(IntEnum):
    """What a request named records by."""

    KEYS = 0
    HEADER = 1
    OFFSETS = 2


@versions("0", flexible="0+")
class NamedKey(ApiMessage, kw_only=True):
    """One part of one search of one partition. A repeated search has another end or another leader epoch."""

    erasure_id: Uuid
    topic_id: Uuid
    partition: Int32
    leader_epoch: Int32
    searched_to: Int64
    """Exclusive."""
    part: Int16 = 0


class NamedRun(Message, kw_only=True):
    """Records with consecutive offsets that were appended in the same leader epoch.

    Leader epoch and timestamp tell them from other records that get the same offsets after an unclean election or in a
    restored cluster.
    """

    first_offset: Int64
    leader_epoch: Int32
    timestamps: list[Int64]
    """One for each record, in milliseconds."""


class RecordName(NamedTuple):
    """What tells a record from all others of its partition. Names sort by offset."""

    offset: Offset
    leader_epoch: LeaderEpoch
    timestamp: int


def names_of(runs: Iterable[NamedRun]) -> set[RecordName]:
    """Returns the names of the records of runs."""
    return {
        RecordName(offset, run.leader_epoch, timestamp)
        for run in runs
        for offset, timestamp in enumerate(run.timestamps, run.first_offset)
    }


def runs_of(names: Iterable[RecordName]) -> list[NamedRun]:
    """Returns the fewest runs of records whose names are in ascending order."""
    runs: list[NamedRun] = []
    next_offset = UNKNOWN_OFFSET
    for offset, leader_epoch, timestamp in names:
        if not runs or (offset, leader_epoch) != (next_offset, runs[-1].leader_epoch):
            runs.append(NamedRun(first_offset=offset, leader_epoch=leader_epoch, timestamps=[]))
        runs[-1].timestamps.append(timestamp)
        next_offset = Offset(offset + 1)
    return runs


@versions("0", flexible="0+")
class NamedRecords(ApiMessage, kw_only=True):
    """What a search found. Times are wall-clock milliseconds."""

    topic: String
    kind: Int8
    """A `SelectorKind`."""
    commitment: Bytes
    """SHA-256 of nonce, kind and selector; empty if the client sent none."""
    principal: String
    leader_id: Int32
    searched_from: Int64
    log_start_offset: Int64
    """Of the leader. Records below it count as deleted."""
    records: list[NamedRun]
    named_ms: Int64
    committed_ms: Int64 = -1
    """-1 before the commit."""
    erasures_end: Int64 = UNKNOWN_OFFSET
    """The exclusive end of the committed erasures; -1 before the commit, and if there was nothing to erase."""
    is_replay: Bool = False
    """Whether the search looked only for records that an export of a ledger names, and not for the selector."""


@versions("0", flexible="0+")
class CleanKey(ApiMessage, kw_only=True):
    """One replica, and the erasure that it has carried out."""

    erasure_id: Uuid
    topic_id: Uuid
    partition: Int32
    broker_id: Int32


@versions("0", flexible="0+")
class CleanReplica(ApiMessage, kw_only=True):
    """No file of the replica has a record below `offset`, or one that an erasure below `erasures_end` names."""

    topic: String
    principal: String
    offset: Int64
    erasures_end: Int64 = UNKNOWN_OFFSET
    """-1 if only the beginning was erased."""
    directory: String
    """The path of the log directory."""
    directory_id: Uuid
    broker_epoch: Int64
    clean_ms: Int64


@versions("0", flexible="0+")
class StandingKey(ApiMessage, kw_only=True):
    """One partition."""

    topic_id: Uuid
    partition: Int32


@versions("0", flexible="0+")
class StandingSearch(ApiMessage, kw_only=True):
    """All records below `searched_to` were searched for the keys of the standing erasures.

    Records from before an erasure began to stand were searched by the request that began it.
    """

    topic: String
    searched_to: Int64
    """Exclusive."""
    leader_epoch: Int32
    """Of the record before it; -1 without one. After a truncation another record may be there."""
    searched_ms: Int64


LedgerKey: TypeAlias = NamedKey | CleanKey | StandingKey
LedgerValue: TypeAlias = NamedRecords | CleanReplica | StandingSearch

_TYPES: Final[dict[int, tuple[type[LedgerKey], type[LedgerValue]]]] = {
    NAMED_TYPE: (NamedKey, NamedRecords),
    CLEAN_TYPE: (CleanKey, CleanReplica),
    STANDING_TYPE: (StandingKey, StandingSearch),
}
_TYPE_OF: Final = {key: number for number, (key, _) in _TYPES.items()}


class LedgerEntry(msgspec.Struct, frozen=True):
    """One record of the ledger; `value` is None in a tombstone."""

    key: LedgerKey
    value: LedgerValue | None


def encode_entry(entry: LedgerEntry) -> CoordinatorRecord:
    """Returns key and value."""
    kind = _TYPE_OF[type(entry.key)]
    assert entry.value is None or isinstance(entry.value, _TYPES[kind][1]), type(entry.value)
    key = INT16.pack(kind) + codec_for(type(entry.key), 0).encode(entry.key)
    return key, None if entry.value is None else encode_value(entry.value)


def decode_key(key: bytes | None) -> LedgerKey | None:
    """Decodes the key of a record; returns None for an unknown type. Errors: ProtocolError for invalid bytes."""
    types = _TYPES.get(record_type(key))
    if types is None or key is None:
        return None
    decoded: LedgerKey = codec_for(types[0], 0).decode(key, INT16.size, len(key))
    return decoded


def decode_entry(key: bytes | None, value: bytes | None) -> LedgerEntry | None:
    """Decodes a record; returns None for an unknown type.

    Errors: ProtocolError for invalid bytes, and for an unknown version.
    """
    decoded = decode_key(key)
    return None if decoded is None else LedgerEntry(decoded, decode_value(_TYPES[record_type(key)][1], value))
