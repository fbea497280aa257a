"""Which records of the ledger count when an erasure is repeated."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from lowtide.broker.ledger.erasure_ledger import LedgerPartition
from lowtide.broker.ledger.named_records import committed_records, last_end, why_names_invalid
from lowtide.protocol.erasure_ledger_records import LedgerEntry, NamedRun, RecordName, SelectorKind
from lowtide.protocol.messages.find_records import NAMED_MAX, FindRecordsPartition, FindRecordsRequest
from lowtide.protocol.types import UNKNOWN_OFFSET
from tests.unit.admin.ledger_rows import ERASURE, TIME_MS, TOPIC_ID, clean, named

PLACE = LedgerPartition(TOPIC_ID, 0)


def test_other_records_of_the_ledger_name_nothing() -> None:
    """Protects from erasing what was never committed, and from missing what comes after it."""
    begun, removed = named(searched_to=1, committed_ms=-1), LedgerEntry(named(searched_to=2).key, None)
    elsewhere = LedgerEntry(msgspec.structs.replace(named().key, partition=1), named().value)
    committed = named(searched_to=3, records=[NamedRun(first_offset=5, leader_epoch=1, timestamps=[TIME_MS])])
    found = committed_records([clean(1), begun, removed, elsewhere, committed], PLACE)
    assert found == {ERASURE: {RecordName(5, 1, TIME_MS)}}
    assert isinstance(ERASURE, UUID)


def test_the_end_is_that_of_the_last_erasure_of_the_partition() -> None:
    """Protects the check that the ledger is as new as the log: confirmations and other partitions do not count."""
    elsewhere = LedgerEntry(msgspec.structs.replace(named().key, partition=1), named(erasures_end=2_000).value)
    entries = [
        named(erasures_end=950),
        named(searched_to=950, erasures_end=901),
        elsewhere,
        clean(2, erasures_end=3_000),
    ]
    assert last_end(entries, PLACE) == 950
    assert last_end([elsewhere, clean(2)], PLACE) == UNKNOWN_OFFSET


def run_of(count: int) -> NamedRun:
    return NamedRun(first_offset=0, leader_epoch=0, timestamps=list(range(count)))


@pytest.mark.parametrize(
    ("rows", "refusal"),
    [
        ([[run_of(NAMED_MAX)]], None),
        ([[run_of(1)] * NAMED_MAX], None),
        ([[run_of(NAMED_MAX), run_of(1)]], f"The request names {NAMED_MAX + 1} records; at most {NAMED_MAX} are"),
        ([[run_of(0)] * (NAMED_MAX + 1)], f"The request names {NAMED_MAX + 1} records; at most {NAMED_MAX} are"),
        ([[run_of(1)], []], "Named records must be given for all partitions."),
    ],
)
def test_a_request_names_a_bounded_number_of_records(rows: list[list[NamedRun]], refusal: str | None) -> None:
    request = FindRecordsRequest(named_kind=SelectorKind.KEYS, topics=[], search_id=bytes(16), timeout_ms=0)
    partitions = [FindRecordsPartition(partition_index=number, named=runs) for number, runs in enumerate(rows)]
    found = why_names_invalid(request, partitions)
    assert found is None if refusal is None else (found or "").startswith(refusal)
