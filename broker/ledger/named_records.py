"""Tells records that the ledger names from others that have their offsets. Pure.

After an unclean election, or in a restored cluster, another record may have the offset of an erased one. The same
record has the same offset, leader epoch and timestamp.

Guards: a request names a bounded number of records, which is counted before anything is made of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import msgspec

from lowtide.protocol.erasure_ledger_records import (
    LedgerEntry,
    NamedKey,
    NamedRecords,
    NamedRun,
    RecordName,
    SelectorKind,
    names_of,
)
from lowtide.protocol.messages.find_records import NAMED_MAX, NO_KIND
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset
from lowtide.storage.erasures.record_search import FoundRecords

if TYPE_CHECKING:
    from lowtide.broker.ledger.erasure_ledger import LedgerPartition
    from lowtide.protocol.messages.find_records import FindRecordsPartition, FindRecordsRequest


RecordNames: TypeAlias = set[RecordName]


class ReplayedSearch(msgspec.Struct, frozen=True):
    """The part of an earlier erasure that a request repeats in one partition."""

    kind: SelectorKind
    commitment: bytes
    runs: tuple[NamedRun, ...]


def offsets_of(names: Iterable[RecordName]) -> OffsetRanges:
    """Returns the offsets of named records."""
    return OffsetRanges.of_offsets(each.offset for each in names)


def committed_records(entries: Iterable[LedgerEntry], place: LedgerPartition) -> dict[UUID, RecordNames]:
    """Returns what committed erasures of a partition name."""
    named: dict[UUID, RecordNames] = {}
    for entry in entries:
        value, key = entry.value, entry.key
        if not isinstance(key, NamedKey) or not isinstance(value, NamedRecords) or value.committed_ms < 0:
            continue
        if (key.topic_id, key.partition) == place:
            named.setdefault(UUID(bytes=bytes(key.erasure_id)), set()).update(names_of(value.records))
    return named


def last_end(entries: Iterable[LedgerEntry], place: LedgerPartition) -> Offset:
    """Returns the highest exclusive end of the committed erasures of a partition; -1 without one."""
    return max(
        (
            each.value.erasures_end
            for each in entries
            if isinstance(each.value, NamedRecords) and (each.key.topic_id, each.key.partition) == place
        ),
        default=UNKNOWN_OFFSET,
    )


def still_there(found: FoundRecords, named: Collection[RecordName]) -> FoundRecords:
    """Returns those of the found records that are named."""
    left = FoundRecords()
    for row in zip(found.offsets, found.leader_epochs, found.timestamps, strict=True):
        if row in named:
            left.offsets.append(row[0])
            left.leader_epochs.append(row[1])
            left.timestamps.append(row[2])
    return left


def replayed_search(request: FindRecordsRequest, row: FindRecordsPartition) -> ReplayedSearch | None:
    """Returns which part of an earlier erasure a row repeats; None if it doesn't."""
    if not row.named:
        return None
    return ReplayedSearch(SelectorKind(request.named_kind), bytes(request.commitment), tuple(row.named))


def why_names_invalid(request: FindRecordsRequest, rows: Sequence[FindRecordsPartition]) -> str | None:
    """Returns why named records are refused, in a sentence; None if they are valid, or if there are none."""
    runs = [run for row in rows for run in row.named]
    if not runs:
        return None if request.named_kind == NO_KIND else "named_kind needs named records."
    count = sum(len(run.timestamps) for run in runs)
    if count > NAMED_MAX or len(runs) > NAMED_MAX:
        return f"The request names {max(count, len(runs))} records; at most {NAMED_MAX} are allowed."
    if any(not run.timestamps or run.first_offset < 0 for run in runs):
        return "A run of named records is empty, or has a negative offset."
    if not all(row.named for row in rows):
        return "Named records must be given for all partitions."
    if request.named_kind not in [*SelectorKind]:
        return f"named_kind is {request.named_kind}; that is no kind of selector."
    return None
