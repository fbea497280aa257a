"""Fetches some records of a partition from its leader, to inspect them: from an offset on, or the last ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import AdminClientBase
from lowtide.admin.cluster_view import ClusterView
from lowtide.admin.errors import BrokerAnsweredError, code_name
from lowtide.admin.leaders import LeaderFinder
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.records import iterate_batches
from lowtide.protocol.types import BrokerId, Offset, ProducerId, TopicPartition

T = TypeVar("T")

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
    view: ClusterView | None = None,
    timeout: float | None = None,
) -> FetchedRecords:
    """Fetches about `max_bytes` of record batches from `offset` on.

    The broker waits up to `wait_ms` for the first record. `protocol.records` reads the batches. With `read_committed`
    the fetch ends at the last stable offset. The first attempt finds the leader in `view`, if there is one.
    Errors: BrokerAnsweredError, such as OFFSET_OUT_OF_RANGE; DeadlineExceededError.
    """
    call = client.call(timeout)
    leaders, what = LeaderFinder(call, view), f"{partition}: records from offset {offset} on"

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


STEP_BYTES_MAX: Final = 1 << 20
"""A step back that turns out to have more bytes is repeated with a quarter of the offsets."""

BACKWARD_BYTES_MAX: Final = 32 << 20
"""How many bytes are read for the last records of a partition."""


@dataclass(frozen=True, slots=True)
class LastRows(Generic[T]):
    """The last rows below an offset, the oldest first."""

    rows: list[T]
    first: Offset
    """Nothing is left out between it and the first row, unless there are `count` rows."""
    is_complete: bool
    """Whether there are as many rows as were asked for, or all of the log's."""


async def last_rows(
    fetch: Callable[[Offset], Awaitable[FetchedRecords]],
    rows_of: Callable[[FetchedRecords, Offset, Offset], tuple[list[T], Offset]],
    log_start: Offset,
    end: Offset,
    count: int,
) -> LastRows[T]:
    """Returns the last `count` rows between `log_start` and `end` (exclusive).

    `rows_of` returns the rows of fetched batches from the second argument up to the third (exclusive), and the offset
    after the batches. A number of records is not a number of offsets: compacted and transactional logs have gaps. So it
    steps back over twice as many offsets each time, until it has enough rows. Errors: those of `fetch` and `rows_of`.
    """
    found: list[T] = []
    until, width, room = end, 1, BACKWARD_BYTES_MAX
    while until > log_start and len(found) < count and room > 0:
        begin = max(log_start, until - width)
        rows, offset, base, taken = list[T](), begin, begin, 0
        while offset < until and (taken < STEP_BYTES_MAX or width == 1):
            try:
                fetched = await fetch(offset)
            except BrokerAnsweredError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                return LastRows(found, until, is_complete=True)  # They were deleted meanwhile.
            if offset == begin:
                base = min(begin, next((header.base_offset for _, header in iterate_batches(fetched.records)), begin))
                base = max(base, log_start)
            some, following = rows_of(fetched, base if offset == begin else offset, until)
            rows += some
            taken += len(fetched.records)
            if following <= offset:
                break
            offset = following
        room -= taken
        if offset < until and width > 1:
            width = max(1, width // 4)
            continue
        found, until, width = rows + found, base, 2 * width
    return LastRows(found[-count:], until, is_complete=len(found) >= count or until <= log_start)
