"""Fetches some records of a partition from its leader, to inspect them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import AdminCall, AdminClientBase, by_topic
from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.admin.leaders import LeaderFinder
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.types import BrokerId, Offset, ProducerId, TopicPartition

T = TypeVar("T")

NAMES_UNTIL: Final = 12
"""The last version of Fetch with topic names; later ones have topic ids."""

FETCH_BYTES: Final = 1 << 20
"""Kafka's default of `max.partition.fetch.bytes`. A larger first batch is returned whole."""

ANSWER_BYTES_MAX: Final = 8 << 20
"""The bytes of an answer about several partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Record batches in binary form. The first batch may begin below the requested offset, the last one may be cut."""

    records: bytes | memoryview
    log_start_offset: Offset
    """The first readable offset. The high watermark and the last stable offset are exclusive ends. All are -1 if
    unknown."""
    high_watermark: Offset
    last_stable_offset: Offset
    aborted: tuple[tuple[ProducerId, Offset], ...]
    """With `read_committed`: the producer and the first offset of each aborted transaction."""


async def fetch_records(  # noqa: PLR0913 - a method of the client
    client: AdminClientBase,
    partition: TopicPartition,
    offset: Offset,
    *,
    max_bytes: int = FETCH_BYTES,
    wait_ms: int = 0,
    read_committed: bool = False,
    view: ClusterView | None = None,
    timeout: float | None = None,
) -> FetchedRecords:
    """Fetches about `max_bytes` of record batches from `offset` on.

    The broker waits up to `wait_ms` for the first record. `protocol.records` reads the batches. With `read_committed`
    the fetch ends at the last stable offset. The first attempt finds the leader in `view`, if there is one.
    Errors: BrokerAnsweredError, such as OFFSET_OUT_OF_RANGE; DeadlineExceededError.
    """
    terms = FetchTerms(max_bytes=max_bytes, wait_ms=wait_ms, read_committed=read_committed)
    outcome = (await fetch_each(client.call(timeout), {partition: offset}, terms, view))[partition]
    if isinstance(outcome, AdminError):
        raise outcome
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTerms:
    """What all partitions of a fetch have in common."""

    max_bytes: int = FETCH_BYTES
    """Of each partition."""
    wait_ms: int = 0
    """How long each leader waits for the first record of any of its partitions."""
    read_committed: bool = False


async def fetch_each(
    call: AdminCall, offsets: Mapping[TopicPartition, Offset], terms: FetchTerms, view: ClusterView | None = None
) -> dict[TopicPartition, FetchedRecords | AdminError]:
    """Fetches from several partitions, with one request to each leader. As `fetch_records`."""
    leaders = LeaderFinder(call, view)

    async def send(
        broker_id: BrokerId, partitions: list[TopicPartition]
    ) -> Mapping[TopicPartition, Outcome[FetchedRecords]]:
        rows = {
            key: FetchPartition(partition=key.partition, fetch_offset=offsets[key], partition_max_bytes=terms.max_bytes)
            for key in partitions
        }
        request = FetchRequest(
            max_wait_ms=min(terms.wait_ms, call.wait_ms()),
            min_bytes=1 if terms.wait_ms else 0,
            max_bytes=min(terms.max_bytes * len(partitions), ANSWER_BYTES_MAX),
            isolation_level=int(terms.read_committed),
            topics=[FetchTopic(topic=topic, partitions=some) for topic, some in by_topic(rows).items()],
        )
        response = await call.ask(broker_id, request, waits=True, at_most=NAMES_UNTIL)
        if response.error_code:
            return dict.fromkeys(partitions, RetryLater(code_name(response.error_code)))
        found: dict[TopicPartition, Outcome[FetchedRecords]] = {}
        for topic in response.responses:
            for row in topic.partitions:
                key = TopicPartition(topic.topic, row.partition_index)
                found[key] = _outcome(key, offsets[key], row, leaders)
        return found

    return await call.each(offsets, leaders.locate, send, lambda key: f"{key}: records from offset {offsets[key]} on")


def _outcome(key: TopicPartition, offset: Offset, row: Any, leaders: LeaderFinder) -> Outcome[FetchedRecords]:
    if is_retriable(row.error_code):
        return leaders.on_error(key, row.error_code, "its leader returned no records")
    if row.error_code:
        return BrokerAnsweredError(row.error_code, f"{key}: records from offset {offset} on")
    return Done(
        FetchedRecords(
            records=row.records if row.records is not None else b"",
            log_start_offset=row.log_start_offset,
            high_watermark=row.high_watermark,
            last_stable_offset=row.last_stable_offset,
            aborted=tuple((each.producer_id, each.first_offset) for each in row.aborted_transactions or ()),
        )
    )
