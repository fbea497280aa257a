"""Partitions with automatic deletion: by time, size, minimum timestamp, or consumption (D14).

Records have present, past and future timestamps, in any order. The judge knows every committed batch, and checks each
new log start offset of a leader without a request: a rule in force must allow the deletion of each batch below it, by
the leader's own clock. At the end, everything that the rules delete must be gone.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.protocol.records import BatchHeader
from lowtide.protocol.types import Offset
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_ports import SIMULATION_WALL_START_MS
from lowtide.simulation.cluster_client import ClusterClient
from lowtide.simulation.cluster_load import PartitionLoad
from lowtide.simulation.loaded_partition import DeleteObserver
from lowtide.simulation.machines import Machine
from lowtide.storage.log.log import Log

SEGMENT_BYTES: Final = 1500
CONSUMED_MS: Final = 300
CLOCK_REMEMBERED_S: Final = 5.0
"""A decision by a clock that was set back since is durable by then."""

GONE_WITHIN_S: Final = 10.0
_TOPIC_RESOURCE: Final = 2
_SET: Final = 0
_ALTER_VERSION: Final = 1
_ALTER_TIMEOUT_MS: Final = 2000
_MINIMUM: Final = "log.retention.min.timestamp"


class Rules(msgspec.Struct):
    """The topic's rules; -1 is never. `minimum_ms` is the highest minimum timestamp that a client set."""

    retention_ms: int
    retention_bytes: int
    minimum_ms: int = 0

    def configs(self, random: Random) -> dict[str, str]:
        configs = {
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(self.retention_bytes),
            "retention.commitoffset.ms": str(CONSUMED_MS),
        }
        if random.random() < 0.3:  # noqa: PLR2004
            configs["message.timestamp.type"] = "LogAppendTime"
        if random.random() < 0.3:  # noqa: PLR2004
            configs["segment.ms"] = "1000"
        return configs


def some_rules(random: Random) -> Rules:
    """Returns random rules."""
    return Rules(random.choice((-1, -1, 1500, 4000)), random.choice((-1, -1, 2 * SEGMENT_BYTES, 5 * SEGMENT_BYTES)))


class CommittedBatch(msgspec.Struct, frozen=True, gc=False):
    """A committed batch. `end_offset` is exclusive."""

    base_offset: Offset
    end_offset: Offset
    size_bytes: int
    max_timestamp: int


class KeptLoad(PartitionLoad):
    """A partition with automatic deletion. `consumed` returns the highest offset that all groups have consumed."""

    has_retention = True

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        topic: str,
        partition: int,
        make_client: Callable[[str], ClusterClient],
        random: Random,
        observer: DeleteObserver,
        rules: Rules,
        consumed: Callable[[int], Offset],
    ) -> None:
        super().__init__(topic, partition, make_client, random, observer)
        self.rules = rules
        self.judged: Counter[str] = Counter()
        """The rules that deleted batches."""
        self._consumed = consumed
        self._batches: list[CommittedBatch] = []
        self._sizes: dict[str, list[tuple[Offset, int]]] = {}
        """The segments of each replica at the last check, on which a decision before a crash was based."""

    def timestamp_ms(self, random: Random) -> int:
        now_ms = SIMULATION_WALL_START_MS + int(asyncio.get_running_loop().time() * 1000)
        return now_ms + random.choice(
            (0, 0, 0, 0, 0, 0, -500, -3000, -100_000, 2000, 30_000 if random.random() < 0.1 else 0)  # noqa: PLR2004
        )

    def on_committed(self, header: BatchHeader) -> None:
        """Notes a committed batch, and drops what was known of its offsets and later ones."""
        del self._batches[bisect_left(self._batches, header.base_offset, key=lambda batch: batch.base_offset) :]
        self._batches.append(
            CommittedBatch(header.base_offset, header.next_offset, header.size_bytes, header.max_timestamp)
        )

    def on_log(self, log: Log, machine: Machine) -> None:
        self._sizes[machine.host] = _sizes(log)

    def why_not(self, start: Offset, log: Log, machine: Machine, *, knows_all: bool) -> str | None:
        """Judges a log start offset above all requested deletes. Returns what is wrong."""
        committed_end = self._batches[-1].end_offset if self._batches else 0
        if start > committed_end and knows_all:
            return f"D14: starts at {start}, and only what is below {committed_end} is committed"
        wall_ms = machine.clock.latest_wall_ms(CLOCK_REMEMBERED_S)
        sizes = [_sizes(log), self._sizes.get(machine.host, [])]
        size_bytes = max(sum(size for base, size in each if base >= start) for each in sizes)
        consumed = self._consumed(self.partition)
        for batch in reversed(self._batches[: bisect_left(self._batches, start, key=lambda each: each.base_offset)]):
            if batch.base_offset < self.history.requested_delete:
                break
            rule = self._rule(batch, wall_ms, size_bytes, consumed)
            if rule is None:
                return (
                    f"D14: starts at {start}, and no rule lets go of batch {batch.base_offset} to {batch.end_offset}, "
                    f"{size_bytes} "
                    f"bytes behind it, {wall_ms - batch.max_timestamp} ms old, consumed to {consumed} at most: "
                    f"{self.rules}"
                )
            self.judged[rule] += 1
            size_bytes += batch.size_bytes
        self.history.requested_delete = start
        return None

    def _rule(self, batch: CommittedBatch, wall_ms: int, bytes_behind: int, consumed: Offset) -> str | None:
        age_ms = wall_ms - batch.max_timestamp
        if batch.end_offset <= consumed and age_ms > CONSUMED_MS:
            return "consumed"
        if 0 <= batch.max_timestamp < self.rules.minimum_ms:
            return "minimum timestamp"
        if 0 <= self.rules.retention_bytes <= bytes_behind:
            return "size"
        return "time" if 0 <= self.rules.retention_ms < age_ms else None

    def overdue(self, log: Log, machine: Machine) -> str | None:
        """Returns what should have been deleted from an idle leader."""
        if len(log.segments) < 2 or log.segments[1].base_offset > log.high_watermark:  # noqa: PLR2004
            return None
        first = log.segments[0]
        if 0 <= self.rules.retention_bytes <= sum(segment.size for segment in log.segments[1:]):
            return f"{log.topic_partition} is too large"
        # By the segment itself: below the log start offset clients may have seen records that were lost.
        newest_ms = max((header.max_timestamp for _, header in first.batches(0)), default=-1)
        if first.floor:
            newest_ms = max(
                newest_ms, first.max_timestamp
            )  # What has become a hole counts for its segment's age, as it does in Kafka.
        age_ms = machine.clock.wall_ms() - newest_ms
        if newest_ms >= 0 and 0 <= self.rules.retention_ms < age_ms:
            return f"{log.topic_partition} has records of {newest_ms}"
        return None


def _sizes(log: Log) -> list[tuple[Offset, int]]:
    return [(segment.base_offset, segment.size) for segment in log.segments]


class MinimumMover:
    """Raises the topic's minimum timestamp."""

    def __init__(self, topic: str, rules: Rules, client: ClusterClient, random: Random) -> None:
        self.topic = topic
        self.key = f"least timestamp of {topic}"
        self._rules = rules
        self._client = client
        self._random = random

    async def run(self, *, until: asyncio.Event, pause_s: float) -> None:
        while not until.is_set():
            await asyncio.sleep(self._random.uniform(4, 20) * pause_s)
            minimum_ms = (
                SIMULATION_WALL_START_MS + int(self._client.now_s() * 1000) - self._random.choice((500, 1500, 5000))
            )
            self._rules.minimum_ms = max(self._rules.minimum_ms, minimum_ms)
            config = AlterableConfig(name=_MINIMUM, config_operation=_SET, value=str(minimum_ms))
            resource = AlterConfigsResource(resource_type=_TOPIC_RESOURCE, resource_name=self.topic, configs=[config])
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
            try:
                await self._client.ask(
                    self._client.any_broker(), request, _ALTER_VERSION, timeout_ms=_ALTER_TIMEOUT_MS, must_answer=False
                )
            except OSError:
                continue
        self._client.close()
