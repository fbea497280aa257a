"""The page of transactions: the open ones, what they hold back, and those that will not end by themselves.

Consumers that read committed records stop at the last stable offset, which is the first offset of the oldest open
transaction of the partition.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.errors import AdminError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.console.answers import sentence_of
from lowtide.protocol.types import Offset, ProducerId, TopicPartition
from lowtide.runtime.clock import SystemClock

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.transactions import ProducerDescription, TransactionDescription

OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
TRANSACTIONS_MAX: Final = 200
PARTITIONS_MAX: Final = 2_000
"""For more partitions than this the page does not look for transactions that no coordinator knows."""

HELD_MAX: Final = 200
"""How many partitions are asked for their producers."""

LATE_MS: Final = 30_000
"""How late a coordinator may be: it looks for transactions over their timeout at intervals."""


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """A partition whose last stable offset is below its high watermark."""

    last_stable: Offset
    high_watermark: Offset
    producers: Sequence[ProducerDescription]

    def held_by(self, producer_id: ProducerId) -> Offset | None:
        """Returns the first offset of a producer's open transaction."""
        starts = [each.transaction_start for each in self.producers if each.producer_id == producer_id]
        return next((start for start in starts if start >= 0), None)


async def transactions_page(client: AdminClient) -> dict[str, Any]:
    """Returns the page. Errors: AdminError."""
    listed, (held, left_out, trouble) = await asyncio.gather(
        client.list_transactions(states=OPEN_STATES), held_partitions(client)
    )
    described = await client.describe_transactions(list(listed.transactions)[:TRANSACTIONS_MAX])
    found = [each for each in described.values() if not isinstance(each, AdminError) and each.state in OPEN_STATES]
    # Asked after the partitions: a transaction that began between is no transaction without a coordinator.
    known = {each.producer_id for each in listed.transactions.values()} | {each.producer_id for each in found}
    now_ms = SystemClock().wall_ms()
    rows = [transaction_row(each, held, now_ms) for each in found]
    errors = [sentence_of(each) for each in described.values() if isinstance(each, AdminError)]
    complete = not listed.errors and not left_out and len(listed.transactions) <= TRANSACTIONS_MAX
    return {
        "now_ms": now_ms,
        "transactions": sorted(rows, key=lambda row: row["started_ms"] or now_ms),
        "left_out": max(0, len(listed.transactions) - TRANSACTIONS_MAX),
        "orphans": orphans(held, known, now_ms) if not listed.errors else [],
        "partitions_left_out": left_out,
        "complete": complete,
        "errors": [f"Broker {broker_id}: {sentence_of(error)}" for broker_id, error in listed.errors.items()]
        + errors
        + trouble,
    }


async def held_partitions(client: AdminClient) -> tuple[dict[TopicPartition, HeldPartition], int, list[str]]:
    """Returns the partitions that open transactions hold, how many were not looked at, and sentences about errors."""
    topics = await client.list_topics(include_internal=False)
    keys = [
        TopicPartition(name, row.partition)
        for name, topic in sorted(topics.items())
        for row in topic.partitions.values()
        if row.leader is not None
    ]
    asked = dict.fromkeys(keys[:PARTITIONS_MAX], OffsetSpec.LATEST)
    left_out = len(keys) - len(asked)
    stable, ends = await asyncio.gather(
        client.list_offsets(asked, read_committed=True) if asked else _nothing(),
        client.list_offsets(asked) if asked else _nothing(),
    )
    behind = {}
    for key, end in ends.items():
        last_stable = stable.get(key)
        if isinstance(end, ListedOffset) and isinstance(last_stable, ListedOffset) and last_stable.offset < end.offset:
            behind[key] = (last_stable.offset, end.offset)
    chosen = dict(list(behind.items())[:HELD_MAX])
    producers = await client.describe_producers(chosen) if chosen else {}
    held, trouble = {}, []
    for key, (last_stable_offset, high_watermark) in chosen.items():
        answer = producers.get(key, ())
        if isinstance(answer, AdminError):
            trouble.append(sentence_of(answer))
        held[key] = HeldPartition(last_stable_offset, high_watermark, () if isinstance(answer, AdminError) else answer)
    return held, left_out + len(behind) - len(chosen), trouble


async def _nothing() -> dict[TopicPartition, ListedOffset | AdminError]:
    return {}


def transaction_row(
    found: TransactionDescription, held: Mapping[TopicPartition, HeldPartition], now_ms: int
) -> dict[str, Any]:
    """Returns an open transaction for the page."""
    age_ms = None if found.started_ms is None else max(0, now_ms - found.started_ms)
    late = age_ms is not None and age_ms > found.timeout_ms + LATE_MS
    return {
        "id": found.transactional_id,
        "coordinator": found.coordinator,
        "state": found.state,
        "producer": found.producer_id,
        "epoch": found.producer_epoch,
        "started_ms": found.started_ms,
        "age_ms": age_ms,
        "timeout_ms": found.timeout_ms,
        "late": late,
        "what_to_do": remedy(found.state, late=late),
        "partitions": [partition_row(key, held.get(key), found.producer_id) for key in found.partitions],
    }


def partition_row(key: TopicPartition, held: HeldPartition | None, producer_id: ProducerId) -> dict[str, Any]:
    """Returns a partition of a transaction, with what the transaction holds back."""
    start = None if held is None else held.held_by(producer_id)
    return {
        **key._asdict(),
        "first": start,
        "last_stable": None if held is None else held.last_stable,
        "high_watermark": None if held is None else held.high_watermark,
        "holds": held is not None and start is not None and start <= held.last_stable,
    }


def remedy(state: str, *, late: bool) -> str:
    """Returns what to do about an open transaction."""
    if state != "Ongoing":
        return (
            "The coordinator writes the outcome to the partitions. "
            "If that lasts, look for a partition of it without a leader."
        )
    if late:
        return (
            "It is over its timeout and was not aborted: check that its coordinator runs. "
            "A producer that starts with the same transactional id aborts it."
        )
    return "Its producer may still commit it. At its timeout the coordinator aborts it."


def orphans(held: Mapping[TopicPartition, HeldPartition], known: set[ProducerId], now_ms: int) -> list[dict[str, Any]]:
    """Returns the transactions of partitions whose producers no coordinator knows: they never end by themselves."""
    rows: dict[tuple[ProducerId, int], list[dict[str, Any]]] = defaultdict(list)
    latest: dict[tuple[ProducerId, int], int] = defaultdict(int)
    for key, partition in sorted(held.items()):
        for each in partition.producers:
            if each.transaction_start >= 0 and each.producer_id not in known:
                producer = (each.producer_id, each.producer_epoch)
                rows[producer].append(partition_row(key, partition, each.producer_id))
                latest[producer] = max(latest[producer], each.last_timestamp)
    return [
        {
            "producer": producer_id,
            "epoch": epoch,
            "age_ms": max(0, now_ms - latest[producer_id, epoch]),
            "partitions": partitions,
        }
        for (producer_id, epoch), partitions in rows.items()
    ]
