"""Some records of a partition, as its leader has them: for looking at, not for consuming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowtide.admin.anywhere import wait_ms as longest_wait_ms
from lowtide.admin.attempts import Attempts, Done, Outcome, Retry
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.admin.leaders import Leaders
from lowtide.protocol.client.retries import is_retriable
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from lowtide.protocol.types import BrokerId, Offset, ProducerId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import Cluster
    from lowtide.admin.patience import Deadline

NAMES_UNTIL: Final = 12
"""From version 13 on, Fetch takes topic ids instead of names."""

FETCH_BYTES: Final = 1 << 20
"""What is asked for unless the caller says otherwise: Kafka's `max.partition.fetch.bytes`. A first batch that is larger comes whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Batches in their binary form, one after the other; the first may begin below the offset that was asked for, the last may be cut."""

    records: bytes | memoryview
    log_start_offset: Offset
    """Exclusive ends are the two others, where the broker tells them; else -1."""
    high_watermark: Offset
    last_stable_offset: Offset
    aborted: tuple[tuple[ProducerId, Offset], ...]
    """Producers, and the first offset of each transaction of theirs that was aborted, for who reads committed records only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOptions:
    """How a fetch reads: about how many bytes, how long it waits for any, and whether what transactions left open or aborted is hidden."""

    max_bytes: int = FETCH_BYTES
    wait_ms: int = 0
    read_committed: bool = False


async def fetch_records(
    cluster: Cluster, partition: TopicPartition, offset: Offset, options: FetchOptions, deadline: Deadline
) -> FetchedRecords:
    """See `AdminClient.fetch_records`."""
    leaders = Leaders(cluster, deadline)

    async def send(
        broker_id: BrokerId, _: list[TopicPartition], __: int
    ) -> Mapping[TopicPartition, Outcome[FetchedRecords]]:
        row = FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=options.max_bytes)
        request = FetchRequest(
            max_wait_ms=min(options.wait_ms, longest_wait_ms(cluster, deadline)),
            min_bytes=1 if options.wait_ms else 0,
            max_bytes=options.max_bytes,
            isolation_level=int(options.read_committed),
            topics=[FetchTopic(topic=partition.topic, partitions=[row])],
        )
        async with cluster.broker(broker_id, deadline, waits=True) as handle:
            response = await handle.ask(request, at_most=NAMES_UNTIL)
        if response.error_code:
            return {partition: Retry(code_name(response.error_code))}
        found = response.responses[0].partitions[0] if response.responses and response.responses[0].partitions else None
        if found is None:
            return {}
        if found.error_code:
            if is_retriable(found.error_code):
                return {partition: leaders.on_error(partition, found.error_code, "its leader doesn't give records")}
            return {
                partition: BrokerAnsweredError(found.error_code, f"{partition}: no records from offset {offset} on")
            }
        return {
            partition: Done(
                FetchedRecords(
                    records=found.records if found.records is not None else b"",
                    log_start_offset=found.log_start_offset,
                    high_watermark=found.high_watermark,
                    last_stable_offset=found.last_stable_offset,
                    aborted=tuple((row.producer_id, row.first_offset) for row in found.aborted_transactions or ()),
                )
            )
        }

    attempts = Attempts[TopicPartition, FetchedRecords](cluster, deadline, leaders.locate, send)
    await attempts.run([partition])
    outcome = attempts.results(lambda _: f"{partition}: records from offset {offset} on")[partition]
    if isinstance(outcome, AdminError):
        raise outcome
    return outcome
