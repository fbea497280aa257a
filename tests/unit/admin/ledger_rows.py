"""Records of the ledger for tests: one erasure of three records of one partition."""

from __future__ import annotations

from uuid import UUID

import msgspec

from lowtide.protocol.erasure_ledger_records import (
    CleanKey,
    CleanReplica,
    LedgerEntry,
    NamedKey,
    NamedRecords,
    NamedRun,
    SelectorKind,
)

ERASURE = UUID(int=0x39)
TOPIC_ID = bytes(range(16))
PLACE = (TOPIC_ID, 0)
TIME_MS = 1_600_000_000_000
END = 900


def named(*, searched_to: int = END, **changes) -> LedgerEntry:
    """Offsets 103, 107 and 108 with the timestamps that `TIME_MS` and the offset give."""
    key = NamedKey(erasure_id=ERASURE.bytes, topic_id=TOPIC_ID, partition=0, leader_epoch=2, searched_to=searched_to)
    value = NamedRecords(
        topic="flights",
        kind=SelectorKind.KEYS,
        commitment=b"",
        principal="User:eve",
        leader_id=1,
        searched_from=100,
        log_start_offset=100,
        records=[
            NamedRun(first_offset=103, leader_epoch=2, timestamps=[TIME_MS + 103]),
            NamedRun(first_offset=107, leader_epoch=2, timestamps=[TIME_MS + 107, TIME_MS + 108]),
        ],
        named_ms=TIME_MS,
        committed_ms=TIME_MS + 1,
        erasures_end=901,
    )
    return LedgerEntry(key, msgspec.structs.replace(value, **changes))


def clean(broker: int, *, erasures_end: int = 901) -> LedgerEntry:
    """The directory's id has the broker's number in each byte."""
    key = CleanKey(erasure_id=ERASURE.bytes, topic_id=TOPIC_ID, partition=0, broker_id=broker)
    value = CleanReplica(
        topic="flights",
        principal="User:eve",
        offset=100,
        erasures_end=erasures_end,
        directory=f"/var/lib/lowtide/{broker}",
        directory_id=bytes([broker]) * 16,
        broker_epoch=7,
        clean_ms=TIME_MS + 2,
    )
    return LedgerEntry(key, value)
