"""What a broker writes to the ledger: all that was found, in parts of a bounded size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.ledger import ledger_entries
from lowtide.broker.ledger.erasure_ledger import LedgerPartition
from lowtide.broker.ledger.ledger_entries import ErasingReplica, ErasureRequest, clean_entry, named_entries
from lowtide.broker.ledger.named_records import committed_records
from lowtide.protocol.erasure_ledger_records import (
    CleanReplica,
    LedgerEntry,
    NamedKey,
    NamedRecords,
    RecordName,
    SelectorKind,
)
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.types import TopicPartition
from lowtide.storage.erasures.log_search import SearchedLog
from lowtide.storage.erasures.record_search import FoundRecords

ID = b"e" * 16

TOPIC_ID = b"t" * 16
LOG: Any = SimpleNamespace(
    topic_id=TOPIC_ID, topic_partition=TopicPartition("t", 4), log_start_offset=2, parent_directory="/data"
)


def searched(count: int) -> SearchedLog:
    found = FoundRecords()
    for number in range(count):
        found.offsets.append(10 + 2 * number)
        found.timestamps.append(100 + number)
        found.leader_epochs.append(3)
    return SearchedLog(5, 90, found)


def named(count: int) -> list[LedgerEntry]:
    request = ErasureRequest(ID, SelectorKind.KEYS, b"", "User:a")
    return named_entries(request, LOG, 1, 7, searched(count), 1_000)


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (3, [3]), (4, [3, 1]), (7, [3, 3, 1])])
def test_every_record_that_was_found_is_named_once(
    count: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects evidence, and an erasure that must be repeated. Also that nothing was found is in the ledger."""
    monkeypatch.setattr(ledger_entries, "RECORDS_MAX", 3)
    entries = named(count)
    values = [each.value for each in entries if isinstance(each.value, NamedRecords)]
    assert [sum(len(run.timestamps) for run in value.records) for value in values] == sizes
    assert [each.key.part for each in entries if isinstance(each.key, NamedKey)] == list(range(len(sizes)))
    for value in values:
        value.committed_ms = 0
    place = LedgerPartition(TOPIC_ID, 4)
    found = [name for names in committed_records(entries, place).values() for name in names]
    assert sorted(found) == [RecordName(10 + 2 * number, 3, 100 + number) for number in range(count)]
    assert committed_records(entries, LedgerPartition(TOPIC_ID, 5)) == {}


@pytest.mark.parametrize(("erasures_end", "recorded"), [(0, -1), (44, 44)])
def test_a_clean_replica_says_which_erasures_it_has_carried_out(erasures_end: int, recorded: int) -> None:
    """Without an end only the beginning was erased."""
    entry = clean_entry(ID, "User:a", LOG, ErasingReplica(2, 8, b"d" * 16), EraseGoal(6, erasures_end), 1_000)
    assert isinstance(entry.value, CleanReplica)
    assert (entry.value.offset, entry.value.erasures_end) == (6, recorded)
    assert entry.key.topic_id == TOPIC_ID
