"""A topic for searches: partitions with batches, gaps between them, and a client that fetches from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec, Timestamp
from lowtide.admin.records import FetchedRecords
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.clock import SystemClock

TOPIC = "t"


class StoredBatch(NamedTuple):
    base: int
    end: int
    content: bytes


class Log:
    """One partition."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.batches: list[StoredBatch] = []
        self.times: dict[int, int] = {}

    def append(self, rows: Sequence[tuple[int, Any, Any, Any]], gap: int = 0, **settings: Any) -> None:
        """Appends a batch of (timestamp, key, value, headers), after a gap in the offsets."""
        base = self.end + gap
        content = build_batch(list(rows), base_offset=base, **settings)
        self.end = base + len(rows)
        self.batches.append(StoredBatch(base, self.end, content))
        self.times |= {base + index: row[0] for index, row in enumerate(rows)}


class LogClient:
    """The calls of an `AdminClient` that a search makes."""

    def __init__(self, logs: Mapping[int, Log]) -> None:
        self.logs = logs
        self.cluster = SimpleNamespace(ports=SimpleNamespace(clock=SystemClock()))
        self.fetches = self.fetched_bytes = 0
        self.failing: dict[int, Exception] = {}

    def call(self) -> Any:
        return self

    async def view(self, _: object) -> None:
        return None

    async def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        rows = {
            number: PartitionDescription(partition=number, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
            for number in self.logs
        }
        known = TopicDescription(name=TOPIC, topic_id=None, is_internal=False, partitions=rows)
        missing = BrokerAnsweredError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic")
        return {name: known if name == TOPIC else missing for name in names}

    async def list_offsets(self, places: Mapping[TopicPartition, Any], **_: object) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = {}
        for key, place in places.items():
            log = self.logs[key.partition]
            if isinstance(place, Timestamp):
                offset = min((each for each, at in log.times.items() if at >= place.ms), default=-1)
            else:
                offset = log.start if place is OffsetSpec.EARLIEST else log.end
            found[key] = ListedOffset(offset=offset, timestamp_ms=-1, leader_epoch=0)
        return found

    async def fetch_records(self, key: TopicPartition, offset: int, *, max_bytes: int, **_: object) -> FetchedRecords:
        log = self.logs[key.partition]
        if key.partition in self.failing:
            raise self.failing[key.partition]
        if not log.start <= offset <= log.end:
            raise BrokerAnsweredError(ErrorCode.OFFSET_OUT_OF_RANGE, str(key))
        found = b""
        for batch in log.batches:
            if batch.end > offset and (not found or len(found) + len(batch.content) <= max_bytes):
                found += batch.content
            elif found:
                break
        self.fetches += 1
        self.fetched_bytes += len(found)
        return FetchedRecords(
            records=found, log_start_offset=log.start, high_watermark=log.end, last_stable_offset=log.end, aborted=()
        )
