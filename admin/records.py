"""Fetches some records of a partition from its leader, to inspect them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import AdminClientBase
from lowtide.admin.errors import BrokerAnsweredError, code_name
from lowtide.admin.leaders import LeaderFinder
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.types import BrokerId, Offset, ProducerId, TopicPartition

NAMES_UNTIL: Final = 12
"""The last version of Fetch with topic names; later ones have topic ids."""

FETCH_BYTES: Final = 1 << 20
"""Kafka's default of `max.partition.fetch.bytes`. A larger first batch is returned whole."""


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
    timeout: float | None = None,
) -> FetchedRecords:
    """Fetches about `max_bytes` of record batches from `offset` on.

    The broker waits up to `wait_ms` for the first record. `protocol.records` reads the batches. With `read_committed`
    the fetch ends at the last stable offset. Errors: BrokerAnsweredError, such as OFFSET_OUT_OF_RANGE;
    DeadlineExceededError.
    """
    call = client.call(timeout)
    leaders, what = LeaderFinder(call), f"{partition}: records from offset {offset} on"

    async def send(broker_id: BrokerId, _: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[FetchedRecords]]:
        row = FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=min(wait_ms, call.wait_ms()),
            min_bytes=1 if wait_ms else 0,
            max_bytes=max_bytes,
            isolation_level=int(read_committed),
            topics=[FetchTopic(topic=partition.topic, partitions=[row])],
        )
        response = await call.ask(broker_id, request, waits=True, at_most=NAMES_UNTIL)
        if response.error_code:
            return {partition: RetryLater(code_name(response.error_code))}
        found = response.responses[0].partitions[0] if response.responses and response.responses[0].partitions else None
        if found is None:
            return {}
        if is_retriable(found.error_code):
            return {partition: leaders.on_error(partition, found.error_code, "its leader returned no records")}
        if found.error_code:
            return {partition: BrokerAnsweredError(found.error_code, what)}
        records = FetchedRecords(
            records=found.records if found.records is not None else b"",
            log_start_offset=found.log_start_offset,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            aborted=tuple((row.producer_id, row.first_offset) for row in found.aborted_transactions or ()),
        )
        return {partition: Done(records)}

    return await call.single(partition, leaders.locate, send, lambda _: what)
