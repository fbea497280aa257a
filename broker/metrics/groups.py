"""Groups and their lag: the series of kafka_exporter, each from the group's coordinator, and the lag in seconds.

The lag is what a group hasn't consumed of what can be read: the high watermark less the committed offset, or less the
log start where that is higher, for deleted records will never be consumed. It is never negative. Where a group has
committed for some partitions of a topic, or consumes it, its other partitions have the offset -1 and the lag -1:
nothing is committed, which is not the same as a lag of 0. Neither counts in a sum.

Ends are those of the leader or of an in-sync replica, if the coordinator has one: they are read together with the
committed offset. Those of other partitions come from `remote_ends`; without a young answer there is no lag, rather than
a wrong one. `record_times` has the lag in seconds, of partitions that have a replica here.

Guards: at most `ROWS_MAX` partitions of groups are written; how many were left out is a metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import gauge
from lowtide.broker.metrics.remote_ends import Ends
from lowtide.broker.metrics.sources import Scrape
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitValue
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicPartition
from lowtide.replication.partition import Partition
from lowtide.storage.log.log import Log

ROWS_MAX: Final = 100_000
"""Some forty megabytes of text."""

_ROWS_A_STEP: Final = 200
NOT_COMMITTED: Final = -1

_PARTITION: Final = ("consumergroup", "topic", "partition")
_TOPIC: Final = ("consumergroup", "topic")

_OFFSET: Final = gauge(
    "kafka_consumergroup_current_offset", "The committed offset; -1 where there is none.", *_PARTITION
)
_LAG: Final = gauge(
    "kafka_consumergroup_lag",
    "Records from the committed offset, or the log start, to the high watermark; -1 without a commit.",
    *_PARTITION,
)
_LAG_SECONDS: Final = gauge(
    "lowtide_consumergroup_lag_seconds",
    "How long ago the first record was produced that the group hasn't consumed; 0 where there is none. Absent where the group's "
    "coordinator has no in-sync replica of the partition.",
    *_PARTITION,
    unit="seconds",
)
_OFFSET_SUM: Final = gauge(
    "kafka_consumergroup_current_offset_sum", "The committed offsets of a topic's partitions.", *_TOPIC
)
_LAG_SUM: Final = gauge("kafka_consumergroup_lag_sum", "The lag in a topic's partitions.", *_TOPIC)
_LAG_SECONDS_MAX: Final = gauge(
    "lowtide_consumergroup_lag_seconds_max", "The longest of a topic's partitions.", *_TOPIC, unit="seconds"
)
_NOT_COMMITTED: Final = gauge(
    "lowtide_consumergroup_partitions_without_commit",
    "Partitions of a topic for which the group has committed nothing.",
    *_TOPIC,
)
_MEMBERS: Final = gauge("kafka_consumergroup_members", "Members of a group.", "consumergroup")
_STATES: Final = gauge("lowtide_groups", "Groups that this broker coordinates.", "type", "state")
_LEFT_OUT: Final = gauge(
    "lowtide_metrics_group_partitions_left_out", "Partitions of groups that this page has no room for."
)
_LOADING: Final = gauge(
    "lowtide_groups_loading", "1 while groups are loaded: then none of this broker's is on the page."
)

METRICS: Final = (
    _OFFSET,
    _LAG,
    _LAG_SECONDS,
    _OFFSET_SUM,
    _LAG_SUM,
    _LAG_SECONDS_MAX,
    _NOT_COMMITTED,
    _MEMBERS,
    _STATES,
    _LEFT_OUT,
    _LOADING,
)


class GroupRow(NamedTuple):
    """A partition of a group. What isn't known is None."""

    labels: str
    committed: int
    lag: int | None
    lag_seconds: float | None


class _Sum:
    """A topic of a group."""

    __slots__ = ("committed", "labels", "lag", "lag_seconds", "without_commit")

    def __init__(self, labels: str) -> None:
        self.labels = labels
        self.committed = self.lag = self.without_commit = 0
        self.lag_seconds = 0.0


def lag_of(committed: int, ends: Ends) -> int:
    """Records that can be read and weren't consumed."""
    return max(ends.high_watermark - max(committed, ends.log_start_offset), 0)


class _Reading:
    """What is read of all groups in one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self.rows: list[GroupRow] = []
        self.sums: list[_Sum] = []
        self.members: list[tuple[str, int]] = []
        self.states: dict[tuple[str, str], int] = {}
        self.left_out = 0
        self._scrape = scrape
        self._replicas = scrape.sources.broker.replicas
        self._image = scrape.sources.broker.metadata.image
        self._wall_ms = scrape.sources.broker.clock.wall_ms()

    def take(self, groups: Groups) -> Iterator[None]:
        """Read the groups of one shard."""
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
                self.rows.append(GroupRow(f'{labels},partition="{number}"}}', offset, lag, lag_seconds))
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
    """Read all groups, some rows at a time, and write them."""
    shards = scrape.sources.groups.loaded()
    reading = _Reading(scrape)
    scrape.record_times.begin()
    is_loading = isinstance(shards, ErrorCode)
    for shard in [] if isinstance(shards, ErrorCode) else shards:
        yield from reading.take(shard.state)
    scrape.record_times.end()
    scrape.remote_ends.end_scrape()
    page.one(_LOADING, int(is_loading))
    page.one(_LEFT_OUT, reading.left_out)
    page.rows(_STATES, sorted((key, count) for key, count in reading.states.items()))
    if scrape.has_partitions:
        yield from _write_rows(reading.rows, page)
    yield from _write_sums(reading, page)


def _write_rows(rows: list[GroupRow], page: Page) -> Iterator[None]:
    steps = [rows[start : start + _ROWS_A_STEP] for start in range(0, len(rows), _ROWS_A_STEP)]
    name = page.begin(_OFFSET)
    for some in steps:
        page.write([f"{name}{row.labels} {row.committed}\n" for row in some])
        yield
    name = page.begin(_LAG)
    for some in steps:
        page.write([f"{name}{row.labels} {row.lag}\n" for row in some if row.lag is not None])
        yield
    name = page.begin(_LAG_SECONDS)
    for some in steps:
        page.write([f"{name}{row.labels} {row.lag_seconds}\n" for row in some if row.lag_seconds is not None])
        yield


def _write_sums(reading: _Reading, page: Page) -> Iterator[None]:
    sums = reading.sums
    for metric, field in (
        (_OFFSET_SUM, "committed"),
        (_LAG_SUM, "lag"),
        (_LAG_SECONDS_MAX, "lag_seconds"),
        (_NOT_COMMITTED, "without_commit"),
    ):
        name = page.begin(metric)
        for start in range(0, len(sums), _ROWS_A_STEP):
            page.write([f"{name}{each.labels} {getattr(each, field)}\n" for each in sums[start : start + _ROWS_A_STEP]])
            yield
    name = page.begin(_MEMBERS)
    members = reading.members
    for start in range(0, len(members), _ROWS_A_STEP):
        page.write(
            [
                f'{name}{{consumergroup="{escaped(group_id)}"}} {count}\n'
                for group_id, count in members[start : start + _ROWS_A_STEP]
            ]
        )
        yield
