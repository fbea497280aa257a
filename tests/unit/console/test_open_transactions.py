"""Open transactions: what they hold back, and which never end by themselves."""

from __future__ import annotations

from lowtide.admin.transactions import ProducerDescription, TransactionDescription
from lowtide.console.transactions import LATE_MS, HeldPartition, orphans, transaction_row
from lowtide.protocol.types import TopicPartition

NOW_MS = 1_000_000
ORDERS = TopicPartition("orders", 0)


def producer(producer_id: int, start: int = -1) -> ProducerDescription:
    return ProducerDescription(
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        last_sequence=9,
        last_timestamp=NOW_MS - 5_000,
        transaction_start=start,
    )


def transaction(age_ms: int, state: str = "Ongoing") -> TransactionDescription:
    return TransactionDescription(
        transactional_id="pay",
        coordinator=1,
        state=state,
        producer_id=7,
        producer_epoch=0,
        timeout_ms=60_000,
        started_ms=NOW_MS - age_ms,
        partitions=(ORDERS,),
    )


def held(*producers: ProducerDescription) -> dict[TopicPartition, HeldPartition]:
    return {ORDERS: HeldPartition(100, 150, producers)}


def test_only_the_oldest_transaction_of_a_partition_holds_it():
    (row,) = transaction_row(transaction(10), held(producer(7, 100), producer(8, 120)), NOW_MS)["partitions"]
    assert (row["first"], row["holds"], row["last_stable"], row["high_watermark"]) == (100, True, 100, 150)
    (row,) = transaction_row(transaction(10), held(producer(7, 120), producer(8, 100)), NOW_MS)["partitions"]
    assert (row["first"], row["holds"]) == (120, False)
    (row,) = transaction_row(transaction(10), {}, NOW_MS)["partitions"]
    assert (row["first"], row["holds"]) == (None, False)


def test_a_transaction_is_late_when_its_coordinator_should_have_aborted_it():
    young = transaction_row(transaction(60_000 + LATE_MS), {}, NOW_MS)
    assert not young["late"]
    assert "may still commit" in young["what_to_do"]
    old = transaction_row(transaction(60_001 + LATE_MS), {}, NOW_MS)
    assert old["late"]
    assert "over its timeout" in old["what_to_do"]
    assert "writes the outcome" in transaction_row(transaction(9, "PrepareCommit"), {}, NOW_MS)["what_to_do"]


def test_a_transaction_that_no_coordinator_knows_is_found():
    (row,) = orphans(held(producer(7, 100), producer(8, 120), producer(9)), {8}, NOW_MS)
    assert (row["producer"], row["age_ms"]) == (7, 5_000)
    assert [(each["topic"], each["partition"], each["first"], each["holds"]) for each in row["partitions"]] == [
        ("orders", 0, 100, True)
    ]
    assert orphans(held(producer(7, 100)), {7}, NOW_MS) == []
