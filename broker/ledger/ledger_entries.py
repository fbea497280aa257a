"""Makes the records of the ledger from what a search found and what a broker has erased. Pure."""

from __future__ import annotations

from itertools import islice, starmap
from typing import TYPE_CHECKING, NamedTuple

from lowtide.protocol.erasure_ledger_records import (
    RECORDS_MAX,
    CleanKey,
    CleanReplica,
    LedgerEntry,
    NamedKey,
    NamedRecords,
    NamedRun,
    RecordName,
    SelectorKind,
    runs_of,
)
from lowtide.protocol.types import UNKNOWN_OFFSET, ZERO_TOPIC_ID

if TYPE_CHECKING:
    from lowtide.protocol.erasure_record import EraseGoal
    from lowtide.protocol.types import BrokerEpoch, BrokerId, LeaderEpoch, Offset, TopicId
    from lowtide.storage.erasures.log_search import SearchedLog
    from lowtide.storage.erasures.record_search import FoundRecords
    from lowtide.storage.log.log import Log


class ErasureRequest(NamedTuple):
    """Who asked for an erasure, and for what."""

    erasure_id: bytes
    kind: SelectorKind
    commitment: bytes
    principal: str
    is_replay: bool = False


class ErasingReplica(NamedTuple):
    """The broker that writes an entry, and the log directory of its replica."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    directory_id: TopicId


def named_entries(
    request: ErasureRequest, log: Log, leader: BrokerId, leader_epoch: LeaderEpoch, searched: SearchedLog, now_ms: int
) -> list[LedgerEntry]:
    """Returns the entries of a search before its erasure is appended; at least one, also if nothing was found."""
    found = searched.records
    entries = []
    for part, start in enumerate(range(0, max(len(found), 1), RECORDS_MAX)):
        key = NamedKey(
            erasure_id=request.erasure_id,
            topic_id=log.topic_id or ZERO_TOPIC_ID,
            partition=log.topic_partition.partition,
            leader_epoch=leader_epoch,
            searched_to=searched.end_offset,
            part=part,
        )
        value = NamedRecords(
            topic=log.topic_partition.topic,
            kind=request.kind,
            commitment=request.commitment,
            principal=request.principal,
            leader_id=leader,
            searched_from=searched.first_offset,
            log_start_offset=log.log_start_offset,
            records=_runs(found, start, min(start + RECORDS_MAX, len(found))),
            named_ms=now_ms,
            is_replay=request.is_replay,
        )
        entries.append(LedgerEntry(key, value))
    return entries


def committed_entries(entries: list[LedgerEntry], erasures_end: Offset, now_ms: int) -> list[LedgerEntry]:
    """Returns the entries that record a committed erasure."""
    for entry in entries:
        assert isinstance(entry.value, NamedRecords)
        entry.value.committed_ms, entry.value.erasures_end = now_ms, erasures_end
    return entries


def clean_entry(
    erasure_id: bytes,
    principal: str,
    log: Log,
    replica: ErasingReplica,
    goal: EraseGoal,
    now_ms: int,
) -> LedgerEntry:
    """Returns the entry of a replica whose files are clean."""
    key = CleanKey(
        erasure_id=erasure_id,
        topic_id=log.topic_id or ZERO_TOPIC_ID,
        partition=log.topic_partition.partition,
        broker_id=replica.broker_id,
    )
    value = CleanReplica(
        topic=log.topic_partition.topic,
        principal=principal,
        offset=goal.offset,
        erasures_end=goal.erasures_end or UNKNOWN_OFFSET,
        directory=log.parent_directory,
        directory_id=replica.directory_id,
        broker_epoch=replica.broker_epoch,
        clean_ms=now_ms,
    )
    return LedgerEntry(key, value)


def _runs(found: FoundRecords, start: int, stop: int) -> list[NamedRun]:
    columns = zip(found.offsets, found.leader_epochs, found.timestamps, strict=True)
    return runs_of(starmap(RecordName, islice(columns, start, stop)))
