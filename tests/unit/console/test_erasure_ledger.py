"""The page's rows of the ledger say the same as the command line's statements, without offsets of records."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.receipts.issuing import described, partitions_of
from lowtide.admin.receipts.ledger import LEDGER_TOPIC, LedgerReader
from lowtide.admin.records import FetchedRecords
from lowtide.console.erasure_ledger import NO_RIGHT, LedgerErasure, ledger_page
from lowtide.console.erasure_receipt import goal_of
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.erasure_ledger_records import LedgerEntry, encode_entry
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from tests.unit.admin.ledger_rows import END, ERASURE, PLACE, TIME_MS, TOPIC_ID, clean, named


class LedgerBroker:
    """A client of a cluster whose ledger has one record in each batch."""

    def __init__(self, entries: list[LedgerEntry], code: int = 0) -> None:
        self.batches = [
            build_batch([(TIME_MS, *encode_entry(entry), ())], base_offset=place, leader_epoch=0)
            for place, entry in enumerate(entries)
        ]
        self.code = code
        self.fetches = 0

    async def describe_topics(self, names):
        if self.code:
            return {name: BrokerAnsweredError(self.code, name) for name in names}
        one = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        return {
            name: TopicDescription(name=name, topic_id=bytes(16), is_internal=True, partitions={0: one})
            for name in names
        }

    async def describe_cluster(self):
        return SimpleNamespace(cluster_id="cluster")

    async def list_offsets(self, wanted):
        return {
            key: ListedOffset(
                offset=0 if place is OffsetSpec.EARLIEST else len(self.batches), timestamp_ms=-1, leader_epoch=0
            )
            for key, place in wanted.items()
        }

    async def fetch_records(self, _partition, offset):
        self.fetches += 1
        end = len(self.batches)
        return FetchedRecords(
            records=self.batches[offset], log_start_offset=0, high_watermark=end, last_stable_offset=end, aborted=()
        )

    def call(self):
        one = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1,))
        flights = TopicDescription(name="flights", topic_id=TOPIC_ID, is_internal=False, partitions={0: one})

        async def view(_names):
            return SimpleNamespace(topics={"flights": flights})

        return SimpleNamespace(view=view)


def page_of(*entries: LedgerEntry, code: int = 0):
    return asyncio.run(ledger_page(LedgerBroker(list(entries), code)))


def test_an_erasure_is_one_row_with_the_replicas_that_are_missing():
    page = page_of(named(committed_ms=-1), named(), clean(1), clean(2))
    (row,) = page["erasures"]
    assert (row["id"], row["records"], row["partitions"], row["topics"]) == (str(ERASURE), 3, 1, ["flights"])
    assert (row["named_ms"], row["changed_ms"]) == (TIME_MS, TIME_MS + 2)
    assert (row["principals"], row["kinds"], row["missing"]) == (["User:eve"], ["keys"], [3])
    assert (page["known"], page["left_out"], page["is_cut"]) == (True, 0, False)


@pytest.mark.parametrize(
    "entries",
    [
        [named(), clean(1), clean(2)],
        [named(), clean(1, erasures_end=900)],
        [named(), named(searched_to=950, erasures_end=990), clean(1), clean(2, erasures_end=990)],
        [clean(1), clean(3)],
        [named(committed_ms=-1, erasures_end=-1)],
    ],
)
def test_the_missing_brokers_are_those_of_the_statement(entries: list[LedgerEntry]):
    own = LedgerErasure()
    for entry in entries:
        own.add(entry)
    (statement,) = described(partitions_of(entries, ERASURE.bytes), {PLACE: (1, 2, 3)})
    row = own.row(ERASURE, {PLACE: (1, 2, 3)})
    assert row["missing"] == statement.not_confirmed
    assert row["records"] == sum(each.records for each in statement.searches)


@pytest.mark.parametrize(
    ("entries", "goal"),
    [
        ([named()], EraseGoal(100, 901)),
        ([named(), named(searched_to=950, erasures_end=990, log_start_offset=120)], EraseGoal(120, 990)),
        ([named(committed_ms=-1, erasures_end=-1)], EraseGoal(100, END)),
        ([clean(1), clean(3, erasures_end=-1)], EraseGoal(100, 901)),
        ([clean(3, erasures_end=-1)], EraseGoal(100, 0)),
    ],
)
def test_what_brokers_must_have_erased_is_in_the_ledger(entries: list[LedgerEntry], goal: EraseGoal):
    assert goal_of(partitions_of(entries, ERASURE.bytes)[PLACE]) == goal


def test_a_cluster_that_never_erased_has_an_empty_ledger():
    page = page_of(code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert (page["known"], page["trouble"], page["erasures"]) == (True, None, [])


def test_without_the_right_the_ledger_says_nothing():
    page = page_of(named(), code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (page["known"], page["trouble"], page["erasures"]) == (False, NO_RIGHT, [])


def test_of_a_large_ledger_the_newest_part_is_read():
    """A page reads a bounded part, and says that it is a part."""
    entries = [
        LedgerEntry(msgspec.structs.replace(named().key, searched_to=number), named().value) for number in range(100)
    ]
    broker = LedgerBroker(entries)
    size = len(broker.batches[0])

    async def read(bytes_max: int) -> tuple[int, bool]:
        reader = LedgerReader(broker, bytes_max)
        rows = [row async for row in reader.rows()]
        assert rows[-1] == encode_entry(entries[-1])
        return len(rows), reader.is_cut

    assert asyncio.run(read(10 * size)) == (10, True)
    broker.fetches = 0
    assert asyncio.run(read(200 * size)) == (100, False)
    assert broker.fetches == 100
    assert LEDGER_TOPIC == "__lowtide_erasures"
