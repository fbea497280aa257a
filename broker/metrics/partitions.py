"""Metrics of partitions and replicas.

They are Kafka's `Log`, `Partition` and `ReplicaManager`, and kafka_exporter's topic series. Every broker has the series
of its logs. Series of a partition come only from its leader, so a sum over all brokers counts each partition once; the
controller has those of partitions without a leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from lowtide.broker.metrics.exposition import Page, escaped
from lowtide.broker.metrics.metric import Metric, counter, gauge
from lowtide.broker.metrics.sources import PartitionRow, Scrape
from lowtide.metadata.image import PartitionImage

_ROWS_A_STEP: Final = 500
_KEYS: Final = ("topic", "partition")

_LOGS: Final[dict[Metric, Callable[[PartitionRow], int]]] = {
    gauge("kafka_log_log_size", "The size of a replica's segments.", *_KEYS, unit="bytes"): lambda row: row.size_bytes,
    gauge("kafka_log_log_logstartoffset", "The log start offset of a replica.", *_KEYS): lambda row: (
        row.log_start_offset
    ),
    gauge("kafka_log_log_logendoffset", "The log end offset of a replica.", *_KEYS): lambda row: row.log_end_offset,
    gauge("kafka_log_log_numlogsegments", "The number of segments of a replica.", *_KEYS): lambda row: row.segments,
}

_LED: Final[dict[Metric, Callable[[PartitionRow], int]]] = {
    gauge("kafka_cluster_partition_replicascount", "The number of replicas.", *_KEYS): lambda row: row.replicas,
    gauge("kafka_cluster_partition_insyncreplicascount", "The number of in-sync replicas.", *_KEYS): lambda row: (
        row.in_sync
    ),
    gauge("kafka_cluster_partition_underreplicated", "1 if a replica is not in sync.", *_KEYS): lambda row: int(
        row.is_under_replicated
    ),
    gauge(
        "kafka_cluster_partition_atminisr", "1 if the number of in-sync replicas equals `min.insync.replicas`.", *_KEYS
    ): (lambda row: int(row.in_sync == row.min_in_sync)),
    gauge(
        "kafka_cluster_partition_underminisr",
        "1 if there are fewer in-sync replicas than `min.insync.replicas`: writes with acks=all fail.",
        *_KEYS,
    ): (lambda row: int(row.in_sync < row.min_in_sync)),
}

_CURRENT: Final = gauge("kafka_topic_partition_current_offset", "The high watermark.", *_KEYS)
_OLDEST: Final = gauge("kafka_topic_partition_oldest_offset", "The log start offset.", *_KEYS)
_LEADER: Final = gauge("kafka_topic_partition_leader", "The id of the leader.", *_KEYS)
_REPLICAS: Final = gauge("kafka_topic_partition_replicas", "The number of replicas.", *_KEYS)
_IN_SYNC: Final = gauge("kafka_topic_partition_in_sync_replica", "The number of in-sync replicas.", *_KEYS)
_PREFERRED: Final = gauge(
    "kafka_topic_partition_leader_is_preferred", "1 if the preferred replica is the leader.", *_KEYS
)
_UNDER: Final = gauge("kafka_topic_partition_under_replicated_partition", "1 if a replica is not in sync.", *_KEYS)

_EXPORTED: Final[dict[Metric, tuple[Callable[[PartitionRow], int], Callable[[PartitionImage], int] | None]]] = {
    _CURRENT: (lambda row: row.high_watermark, None),
    _OLDEST: (lambda row: row.log_start_offset, None),
    _LEADER: (lambda row: row.partition.local_broker_id, None),
    _REPLICAS: (lambda row: row.replicas, lambda state: len(state.replicas)),
    _IN_SYNC: (lambda row: row.in_sync, lambda state: len(state.isr)),
    _PREFERRED: (lambda row: int(row.is_preferred), lambda _state: 0),
    _UNDER: (lambda row: int(row.is_under_replicated), lambda _state: 1),
}
"""The values of a partition led here, and of one without a leader: None if only a leader has it."""

_COUNT: Final = gauge(
    "kafka_server_replicamanager_partitioncount", "The number of partitions with a replica on this broker."
)
_LEADER_COUNT: Final = gauge(
    "kafka_server_replicamanager_leadercount", "The number of partitions that this broker leads."
)
_UNDER_COUNT: Final = gauge(
    "kafka_server_replicamanager_underreplicatedpartitions",
    "The number of led partitions with a replica that is not in sync.",
)
_UNDER_MIN_COUNT: Final = gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "The number of led partitions with fewer in-sync replicas than `min.insync.replicas`.",
)
_AT_MIN_COUNT: Final = gauge(
    "kafka_server_replicamanager_atminisrpartitioncount",
    "The number of led partitions with exactly `min.insync.replicas` in-sync replicas.",
)
_OFFLINE: Final = gauge(
    "kafka_server_replicamanager_offlinereplicacount", "The number of offline replicas on this broker."
)
_SHRINKS: Final = counter(
    "kafka_server_replicamanager_isrshrinks_total", "The number of replicas that this leader removed from ISRs."
)
_EXPANDS: Final = counter(
    "kafka_server_replicamanager_isrexpands_total", "The number of replicas that this leader added to ISRs."
)
_FAILED: Final = counter("kafka_server_replicamanager_failedisrupdates_total", "The number of ISR changes that failed.")
_LAG_MAX: Final = gauge(
    "kafka_server_replicafetchermanager_maxlag",
    "The maximum lag of a followed partition, in records.",
    "clientId",
)
_FETCH_FAILURES: Final = counter(
    "lowtide_replication_fetch_failures_total", "The number of failed fetches from leaders."
)
_LAGGING: Final = gauge(
    "lowtide_replication_lagging_partitions",
    "The number of followed partitions that lack committed records, or have not fetched yet.",
)
_TOPIC_BYTES: Final = gauge(
    "lowtide_topic_size_bytes", "The size of a topic's segments on this broker.", "topic", unit="bytes"
)
_TOPIC_PARTITIONS: Final = gauge(
    "lowtide_topic_led_partitions", "The number of a topic's partitions that this broker leads.", "topic"
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    yield from _write_counts(scrape, page)
    yield from _write_by_topic(scrape, page)
    if not scrape.has_partitions:
        return
    led: list[PartitionRow] = []
    for some in _steps(scrape.rows):
        led += [row for row in some if row.is_leader]
        yield
    leaderless: list[tuple[str, PartitionImage]] = []
    yield from _find_leaderless(scrape, leaderless)
    for rows, metrics in ((scrape.rows, _LOGS), (led, _LED)):
        for metric, value_of in metrics.items():
            yield from page.series(metric, (f"{row.labels} {value_of(row)}" for row in rows))
    for metric, (value_of, of_state) in _EXPORTED.items():
        yield from page.series(metric, (f"{row.labels} {value_of(row)}" for row in led))
        if of_state is not None:
            yield from page.series(metric, (f"{key} {of_state(state)}" for key, state in leaderless), begins=False)


def _steps(rows: Iterable[PartitionRow]) -> Iterator[list[PartitionRow]]:
    left = iter(rows)
    while some := list(islice(left, _ROWS_A_STEP)):
        yield some


def _find_leaderless(scrape: Scrape, found: list[tuple[str, PartitionImage]]) -> Iterator[None]:
    """Finds the partitions without a leader, for the controller to report."""
    metadata = scrape.sources.broker.metadata
    if not metadata.is_controller:
        return
    looked = 0
    for topic in list(metadata.image.topics.values()):
        for number, state in enumerate(topic.partitions):
            if not state.has_leader:
                found.append((f'{{topic="{escaped(topic.name)}",partition="{number}"}}', state))
            looked += 1
            if looked % _ROWS_A_STEP == 0:
                yield
    yield


def _write_counts(scrape: Scrape, page: Page) -> Iterator[None]:
    rows, sources = scrape.rows, scrape.sources
    led = under = under_min = at_min = 0
    for some in _steps(rows):
        for row in some:
            if row.is_leader:
                led += 1
                under += row.is_under_replicated
                under_min += row.in_sync < row.min_in_sync
                at_min += row.in_sync == row.min_in_sync
        yield
    page.one(_COUNT, len(rows))
    page.one(_LEADER_COUNT, led)
    page.one(_UNDER_COUNT, under)
    page.one(_UNDER_MIN_COUNT, under_min)
    page.one(_AT_MIN_COUNT, at_min)
    yield
    page.one(_OFFLINE, len(sources.broker.replicas.offline.keys))
    page.one(_SHRINKS, sources.isr_changes.shrinks)
    page.one(_EXPANDS, sources.isr_changes.expands)
    page.one(_FAILED, sources.isr_changes.failures)
    lag_max = lagging = 0
    for count, following in enumerate(list(sources.fetchers.followed()), 1):
        lag_max = max(lag_max, following.lag)
        lagging += not following.is_in_sync
        if count % _ROWS_A_STEP == 0:
            yield
    page.rows(_LAG_MAX, [(("Replica",), lag_max)])
    page.one(_LAGGING, lagging)
    page.one(_FETCH_FAILURES, sources.fetchers.totals()[1])


def _write_by_topic(scrape: Scrape, page: Page) -> Iterator[None]:
    sizes, led = Counter[str](), Counter[str]()
    for some in _steps(scrape.rows):
        for row in some:
            sizes[row.topic] += row.size_bytes
            led[row.topic] += row.is_leader
        yield
    topics = [(topic, f'{{topic="{escaped(topic)}"}}') for topic in sorted(sizes)]
    for metric, values in ((_TOPIC_BYTES, sizes), (_TOPIC_PARTITIONS, led)):
        yield from page.series(metric, (f"{labels} {values[topic]}" for topic, labels in topics))
