"""Metrics of groups and their lag: kafka_exporter's series, from the group's coordinator, and the lag in seconds.

The lag is the number of readable records that a group has not consumed: from the committed offset, or the log start
offset if that is higher, to the high watermark. It is never negative. Partitions without a commit, of topics that the
group consumes, have the offset -1 and the lag -1, which sums exclude.

The end is that of the leader or of an in-sync replica on the coordinator, read together with the committed offset. Ends
of other partitions come from `remote_ends`; without a recent answer the lag is missing rather than wrong.
`record_times` has the lag in seconds, for partitions with a replica on the coordinator.

Guards: at most `ROWS_MAX` partitions of groups are written; a metric counts those left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.group import GroupType
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.consumer_group import ConsumerGroupState
from lowtide.broker.coordinator.modern.share_group import ShareGroupState
from lowtide.broker.coordinator.streams.streams_group import StreamsGroupState
from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import Metric, gauge
from lowtide.broker.metrics.remote_ends import Ends
from lowtide.broker.metrics.sources import Scrape
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitValue
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import Log

ROWS_MAX: Final = 100_000
"""About forty megabytes of text."""

_ROWS_A_STEP: Final = 200
NOT_COMMITTED: Final = -1

_PARTITION: Final = ("consumergroup", "topic", "partition")
_TOPIC: Final = ("consumergroup", "topic")

_OFFSET: Final = gauge(
    "kafka_consumergroup_current_offset", "The committed offset of a group; -1 if there is none.", *_PARTITION
)
_LAG: Final = gauge(
    "kafka_consumergroup_lag",
    "The number of records from the committed offset, or the log start offset, to the high watermark; -1 without a "
    "commit.",
    *_PARTITION,
)
_LAG_SECONDS: Final = gauge(
    "lowtide_consumergroup_lag_seconds",
    "The age of the first record that the group has not consumed; 0 if there is none. Missing if the group's "
    "coordinator has no in-sync replica of the partition.",
    *_PARTITION,
    unit="seconds",
)
_OFFSET_SUM: Final = gauge(
    "kafka_consumergroup_current_offset_sum", "The sum of a group's committed offsets in a topic.", *_TOPIC
)
_LAG_SUM: Final = gauge("kafka_consumergroup_lag_sum", "The sum of a group's lag in a topic.", *_TOPIC)
_LAG_SECONDS_MAX: Final = gauge(
    "lowtide_consumergroup_lag_seconds_max",
    "The maximum lag of a group in a topic, in seconds.",
    *_TOPIC,
    unit="seconds",
)
_NOT_COMMITTED: Final = gauge(
    "lowtide_consumergroup_partitions_without_commit",
    "The number of a topic's partitions without a commit of the group.",
    *_TOPIC,
)
_MEMBERS: Final = gauge("kafka_consumergroup_members", "The number of members of a group.", "consumergroup")
_STATES: Final = gauge(
    "lowtide_groups", "The number of groups that this broker coordinates, by type and state.", "type", "state"
)
_COUNT: Final = gauge(
    "kafka_server_group_coordinator_metrics_group_count", "The number of groups of a type, 0 included.", "protocol"
)
_COUNTS: Final[Mapping[Metric, tuple[GroupType, type[Enum]]]] = {
    gauge(
        f"kafka_server_group_coordinator_metrics_{kind.value}_group_count",
        f"The number of {kind.value} groups by state, 0 included.",
        "state",
    ): (kind, states)
    for kind, states in (
        (GroupType.CLASSIC, GroupState),
        (GroupType.CONSUMER, ConsumerGroupState),
        (GroupType.SHARE, ShareGroupState),
        (GroupType.STREAMS, StreamsGroupState),
    )
}
"""The metrics of each type of groups, with its states. Source: Kafka's `GroupCoordinatorMetrics`."""

_LEFT_OUT: Final = gauge(
    "lowtide_metrics_group_partitions_left_out", "The number of partitions of groups that do not fit on the page."
)
_LOADING: Final = gauge(
    "lowtide_groups_loading", "1 while groups are loading; the page then has none of this broker's groups."
)


class GroupPartitionRow(NamedTuple):
    """A partition of a group. Unknown values are None."""

    labels: str
    committed: int
    lag: int | None
    lag_seconds: float | None


class _Sum:
    """The sums of a group and topic."""

    __slots__ = ("committed", "labels", "lag", "lag_seconds", "without_commit")

    def __init__(self, labels: str) -> None:
        self.labels = labels
        self.committed = self.lag = self.without_commit = 0
        self.lag_seconds = 0.0


def lag_of(committed: int, ends: Ends) -> int:
    """Returns the number of readable records that were not consumed."""
    return max(ends.high_watermark - max(committed, ends.log_start_offset), 0)


class _GroupReading:
    """The groups read in one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self.rows: list[GroupPartitionRow] = []
        self.sums: list[_Sum] = []
        self.members: list[tuple[str, int]] = []
        self.states: dict[tuple[str, str], int] = {}
        self.left_out = 0
        self._scrape = scrape
        self._replicas = scrape.sources.broker.replicas
        self._image = scrape.sources.broker.metadata.image
        self._wall_ms = scrape.sources.broker.clock.wall_ms()

    def take(self, groups: Groups) -> Iterator[None]:
        for group_id in list(dict.fromkeys((*groups.committed.offsets, *groups.by_id))):
            group = groups.by_id.get(group_id)
            live: frozenset[str] = frozenset()
            if group is not None:
                self.members.append((group_id, len(group.members)))
                key = group.group_type.value, str(group.state.value)
                self.states[key] = self.states.get(key, 0) + 1
                live = group.living_subscriptions() or live
            committed = groups.committed.offsets.get(group_id, {})
            for topic in list(dict.fromkeys((*committed, *sorted(live)))):
                yield from self._take_topic(group_id, topic, dict(committed.get(topic, ())))
            yield

    def _take_topic(self, group_id: str, topic: str, committed: Mapping[int, OffsetCommitValue]) -> Iterator[None]:
        known = self._image.topics.get(topic)
        if known is None:
            return
        labels = f'{{consumergroup="{escaped(group_id)}",topic="{escaped(topic)}"'
        total = _Sum(labels + "}")
        self.sums.append(total)
        for number in range(len(known.partitions)):
            value = committed.get(number)
            offset = NOT_COMMITTED
            if value is not None and value.topic_id in (ZERO_TOPIC_ID, known.topic_id):
                offset = value.offset
            lag, lag_seconds = self._lag(TopicPartition(topic, number), offset)
            if len(self.rows) < ROWS_MAX:
                self.rows.append(GroupPartitionRow(f'{labels},partition="{number}"}}', offset, lag, lag_seconds))
            else:
                self.left_out += 1
            if offset == NOT_COMMITTED:
                total.without_commit += 1
            else:
                total.committed += offset
                total.lag += lag or 0
                total.lag_seconds = max(total.lag_seconds, lag_seconds or 0.0)
            if number % _ROWS_A_STEP == _ROWS_A_STEP - 1:
                yield

    def _lag(self, key: TopicPartition, committed: int) -> tuple[int | None, float | None]:
        if committed == NOT_COMMITTED:
            return NOT_COMMITTED, None
        partition = self._replicas.partitions.get(key)
        if partition is not None and not partition.log.offline and (partition.is_leader or self._is_in_sync(partition)):
            log = partition.log
            lag = lag_of(committed, Ends(log.log_start_offset, log.high_watermark))
            return lag, self._seconds(log, max(committed, log.log_start_offset)) if lag else 0.0
        ends = self._scrape.remote_ends.of(key)
        return (None, None) if ends is None else (lag_of(committed, ends), None)

    def _is_in_sync(self, partition: Partition) -> bool:
        return partition.local_broker_id in partition.in_sync_replicas

    def _seconds(self, log: Log, offset: Offset) -> float | None:
        produced_ms = self._scrape.record_times.of(log, offset)
        return None if produced_ms is None else max(self._wall_ms - produced_ms, 0) / 1000


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    shards = scrape.sources.groups.loaded()
    reading = _GroupReading(scrape)
    scrape.record_times.begin()
    is_loading = isinstance(shards, ErrorCode)
    for shard in [] if isinstance(shards, ErrorCode) else shards:
        yield from reading.take(shard.state)
    scrape.record_times.end()
    scrape.remote_ends.end_scrape()
    page.one(_LOADING, int(is_loading))
    page.one(_LEFT_OUT, reading.left_out)
    page.rows(_STATES, sorted((key, count) for key, count in reading.states.items()))
    if not is_loading:
        _write_counts(reading.states, page)
    rows = reading.rows if scrape.has_partitions else []
    yield from page.series(_OFFSET, (f"{row.labels} {row.committed}" for row in rows))
    yield from page.series(_LAG, (f"{row.labels} {row.lag}" for row in rows if row.lag is not None))
    seconds = (f"{row.labels} {row.lag_seconds}" for row in rows if row.lag_seconds is not None)
    yield from page.series(_LAG_SECONDS, seconds)
    sums = reading.sums
    yield from page.series(_OFFSET_SUM, (f"{each.labels} {each.committed}" for each in sums))
    yield from page.series(_LAG_SUM, (f"{each.labels} {each.lag}" for each in sums))
    yield from page.series(_LAG_SECONDS_MAX, (f"{each.labels} {each.lag_seconds}" for each in sums))
    yield from page.series(_NOT_COMMITTED, (f"{each.labels} {each.without_commit}" for each in sums))
    members = (f'{{consumergroup="{escaped(group_id)}"}} {count}' for group_id, count in reading.members)
    yield from page.series(_MEMBERS, members)


def _write_counts(states: Mapping[tuple[str, str], int], page: Page) -> None:
    """Writes the number of groups by type, and by state."""
    totals = {kind.value: 0 for kind in GroupType}
    for (name, _), count in states.items():
        totals[name] += count
    page.rows(_COUNT, [((name,), count) for name, count in totals.items()])
    for metric, (kind, members) in _COUNTS.items():
        page.rows(metric, [((state.value,), states.get((kind.value, str(state.value)), 0)) for state in members])
