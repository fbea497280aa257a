"""Metrics of deletes, retention, compaction and log directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from lowtide.broker.handlers.describe_deletes import waiting_requests
from lowtide.broker.metrics.exposition import Page, labelled
from lowtide.broker.metrics.metric import counter, gauge, histogram
from lowtide.broker.metrics.sources import Scrape
from lowtide.broker.observation.health import space_of
from lowtide.broker.partitions.deletes.delayed_delete import DeleteTimes
from lowtide.storage.errors import StorageError
from lowtide.storage.log.retention.retention_plan import Reason
from lowtide.storage.log.segments.unfreed import UnfreedReason

_ROWS_A_STEP: Final = 200
_BOUNDS_S: Final = tuple((1 << length) / 1000 for length in range(18))
"""1 ms to two minutes."""
_FOLLOWERS_LOOKED_AT_MAX: Final = 10_000
"""The maximum number of partitions of waiting deletes whose followers are counted."""

_SEGMENTS: Final = counter(
    "lowtide_deleted_segments_total",
    "The number of deleted segments, by topic and reason, and in total by reason.",
    "topic",
    "reason",
)
_BYTES: Final = counter("lowtide_deleted_bytes_total", "The size of deleted segments.", "topic", "reason", unit="bytes")
_RECORDS: Final = counter("lowtide_deleted_records_total", "The number of deleted offsets.", "topic", "reason")
_WAITING: Final = gauge(
    "lowtide_deletes_waiting", "The number of DeleteRecords requests that wait for the disk or for followers.", "stage"
)
_FOLLOWERS: Final = gauge(
    "lowtide_deletes_waiting_for_follower",
    "The number of partitions in waiting deletes that wait for this follower.",
    "broker",
)
_OLDEST: Final = gauge(
    "lowtide_deletes_waiting_oldest_seconds", "The waiting time of the oldest waiting delete.", unit="seconds"
)
_DURABLE: Final = histogram(
    "lowtide_delete_durable_seconds", "The time from a delete request until it is durable on the leader, per partition."
)
_REPLICATED: Final = histogram(
    "lowtide_delete_replicated_seconds", "The time from a delete request until the low watermark reaches its offset."
)
_START_LAG: Final = gauge(
    "lowtide_replica_log_start_lag",
    "The number of offsets that the leader has deleted and a replica has not.",
    "topic",
    "partition",
    "broker",
)
_START_LAG_MAX: Final = gauge(
    "lowtide_replica_log_start_lag_max",
    "The maximum of lowtide_replica_log_start_lag over a broker's replicas of partitions led here.",
    "broker",
)
_UNCLEANABLE: Final = gauge(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    "The number of logs that cannot be compacted because they are corrupt.",
    "logDirectory",
)
_HELD: Final = gauge(
    "lowtide_retention_held_partitions",
    "The number of partitions whose consumed records this group keeps (KIP-68), because it is the slowest or has not "
    "committed.",
    "consumergroup",
)
_OFFLINE_COUNT: Final = gauge("kafka_log_logmanager_offlinelogdirectorycount", "The number of offline log directories.")
_OFFLINE: Final = gauge("kafka_log_logmanager_logdirectoryoffline", "1 for an offline log directory.", "logDirectory")
_CORDONED: Final = gauge(
    "lowtide_log_directory_cordoned", "1 for a log directory that receives no new partitions (KIP-1066).", "directory"
)
_TOTAL: Final = gauge(
    "lowtide_log_directory_size_bytes", "The size of a log directory's volume.", "directory", unit="bytes"
)
_FREE: Final = gauge(
    "lowtide_log_directory_free_bytes", "The usable bytes of a log directory's volume.", "directory", unit="bytes"
)
_LIVE: Final = gauge(
    "lowtide_log_directory_live_bytes", "The size of segments above the log start offsets.", "directory", unit="bytes"
)
_DELETED: Final = gauge(
    "lowtide_log_directory_deleted_bytes", "The deleted bytes that still use disk space.", "directory", unit="bytes"
)
_UNFREED: Final = gauge(
    "lowtide_log_directory_unfreed_bytes",
    "The same by cause: the next round, a reader, the rest of their batch, too few bytes for a hole, a file system "
    "without holes, compaction, or a configuration key.",
    "directory",
    "waits_for",
    unit="bytes",
)
_TO_ERASE: Final = gauge(
    "lowtide_erasures_waiting",
    "The number of logs with deleted records to erase.",
    "directory",
)
_ERASE_REQUESTS: Final = gauge(
    "lowtide_erase_requests_waiting", "The number of waiting EraseRecords requests, per partition.", "directory"
)
_OLDEST_ERASURE: Final = gauge(
    "lowtide_erasures_oldest_seconds",
    "How long the log that waits longest has waited to be erased.",
    "directory",
    unit="seconds",
)
_ERASURES_WITHOUT_ROOM: Final = gauge(
    "lowtide_erasures_without_room",
    "The number of logs to erase that lack disk space or a file descriptor.",
    "directory",
)
_ERASED: Final = counter(
    "lowtide_erased_segments_total", "The number of segments that were rewritten without deleted records.", "directory"
)
_ERASED_WRITTEN: Final = counter(
    "lowtide_erased_written_bytes_total", "The size of the rewritten segments.", "directory", unit="bytes"
)
_MOVES: Final = gauge(
    "lowtide_log_directory_moves",
    "The number of replicas that are moving into a log directory from another one.",
    "directory",
)
_MOVES_LAG: Final = gauge(
    "kafka_server_replicaalterlogdirsmanager_maxlag", "The maximum lag of a moving replica, in records.", "clientId"
)
_MOVED: Final = counter(
    "lowtide_log_directory_moves_done_total", "The number of replicas that moved into a log directory.", "directory"
)
_MOVES_FAILED: Final = counter(
    "lowtide_log_directory_moves_failed_total",
    "The number of moves that failed with a log directory; the next start continues those in progress.",
    "directory",
)
_COPIED: Final = counter(
    "lowtide_log_directory_moves_copied_bytes_total",
    "The bytes copied by moves into a log directory.",
    "directory",
    unit="bytes",
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    yield from _write_deleted(scrape, page)
    yield from _write_waiting(scrape, page)
    yield from _write_start_lags(scrape, page)
    yield from _write_directories(scrape, page)
    _write_moves(scrape, page)


def _write_deleted(scrape: Scrape, page: Page) -> Iterator[None]:
    ledger = scrape.sources.retention.ledger
    rows = sorted(ledger.counts.items(), key=lambda row: (row[0][0], row[0][1].value))
    totals = ledger.totals()
    yield
    for metric, field in ((_SEGMENTS, "segments"), (_BYTES, "size_bytes"), (_RECORDS, "offsets")):
        name = page.begin(metric)
        page.write([f'{name}{{reason="{reason.value}"}} {getattr(totals[reason], field)}\n' for reason in Reason])
        samples = (
            f"{labelled(metric, (topic, reason.value))} {getattr(count, field)}" for (topic, reason), count in rows
        )
        yield from page.series(metric, samples, begins=False)


def _write_waiting(scrape: Scrape, page: Page) -> Iterator[None]:
    sources = scrape.sources
    waiting, now_ms = sources.broker.replicas.waiting, sources.broker.clock.monotonic_ms()
    page.rows(_WAITING, [(("disk",), len(waiting.log_starts)), (("followers",), len(waiting.deletes))])
    lacking = dict.fromkeys(
        (broker for broker in sources.broker.metadata.image.brokers if broker != sources.broker.config.node_id), 0
    )
    oldest_ms, looked = now_ms, 0
    for request in list(waiting_requests(sources.broker)):
        oldest_ms = min(oldest_ms, request.asked_ms)
        for row in request.rows:
            looked += 1
            leadership = None if row.partition is None or row.done else row.partition.leadership
            if leadership is not None and looked <= _FOLLOWERS_LOOKED_AT_MAX:
                for broker, follower in leadership.followers.items():
                    if follower.log_start_offset < row.offset:
                        lacking[broker] = lacking.get(broker, 0) + 1
        if looked % _ROWS_A_STEP == 0:
            yield
    page.rows(_FOLLOWERS, [((broker,), count) for broker, count in sorted(lacking.items())])
    page.one(_OLDEST, (now_ms - oldest_ms) / 1000)
    for metric, times in (
        (_DURABLE, sources.broker.recent_deletes.durable),
        (_REPLICATED, sources.broker.recent_deletes.replicated),
    ):
        page.histogram(metric, [_in_seconds(times)])
    yield


def _in_seconds(times: DeleteTimes) -> tuple[tuple[()], tuple[float, ...], list[int], float]:
    counts = list(accumulate(times.counts))
    return (), _BOUNDS_S, [*counts[: len(_BOUNDS_S)], counts[-1]], times.total_ms / 1000


def _write_start_lags(scrape: Scrape, page: Page) -> Iterator[None]:
    lags: list[tuple[tuple[str, int, int], int]] = []
    most = dict.fromkeys(
        (
            broker
            for broker in scrape.sources.broker.metadata.image.brokers
            if broker != scrape.sources.broker.config.node_id
        ),
        0,
    )
    for count, row in enumerate(scrape.led, 1):
        leadership = row.partition.leadership
        for broker, follower in () if leadership is None else leadership.followers.items():
            lag = row.log_start_offset - follower.log_start_offset if follower.log_start_offset >= 0 else 0
            if lag > 0:
                most[broker] = max(most.get(broker, 0), lag)
                lags.append(((row.topic, row.number, broker), lag))
        if count % _ROWS_A_STEP == 0:
            yield
    page.rows(_START_LAG, lags if scrape.has_partitions else [])
    page.rows(_START_LAG_MAX, [((broker,), lag) for broker, lag in sorted(most.items())])
    yield


def _write_moves(scrape: Scrape, page: Page) -> None:
    moves = scrape.sources.broker.replicas.log_manager.moves
    under_way = moves.under_way()
    targets = Counter(move.target.path for move in under_way)
    page.rows(_MOVES, [((path,), targets[path]) for path in moves.counts])
    page.rows(_MOVES_LAG, [(("ReplicaAlterLogDirs",), max((move.lag for move in under_way), default=0))])
    page.rows(_MOVED, [((path,), counts.done) for path, counts in moves.counts.items()])
    page.rows(_MOVES_FAILED, [((path,), counts.failed) for path, counts in moves.counts.items()])
    page.rows(_COPIED, [((path,), counts.copied_bytes) for path, counts in moves.counts.items()])


def _write_directories(scrape: Scrape, page: Page) -> Iterator[None]:
    sources = scrape.sources
    directories = sources.broker.replicas.log_manager.directories
    damaged = Counter(
        log.parent_directory for log in (sources.cleaner.uncleanable.values() if sources.cleaner is not None else ())
    )
    page.rows(_UNCLEANABLE, [((path,), damaged[path]) for path in directories.paths])
    page.rows(_HELD, [((group,), count) for group, count in sorted(sources.retention.held.items())])
    offline = directories.offline
    page.one(_OFFLINE_COUNT, len(offline))
    page.rows(_OFFLINE, [((path,), int(path in offline)) for path in directories.paths])
    page.rows(_CORDONED, [((path,), int(path in directories.cordoned)) for path in directories.paths])
    usages = []
    for path in directories.paths:
        try:
            usages.append((path, directories.usage(path)))
        except StorageError:
            continue
    page.rows(_TOTAL, [((path,), usage.total_bytes) for path, usage in usages])
    page.rows(_FREE, [((path,), usage.usable_bytes) for path, usage in usages])
    page.rows(_TO_ERASE, [((path,), usage.to_erase.logs) for path, usage in usages])
    page.rows(_ERASE_REQUESTS, [((path,), usage.to_erase.requests) for path, usage in usages])
    page.rows(_OLDEST_ERASURE, [((path,), usage.to_erase.oldest_ms / 1000) for path, usage in usages])
    page.rows(_ERASURES_WITHOUT_ROOM, [((path,), usage.to_erase.without_room) for path, usage in usages])
    page.rows(_ERASED, [((path,), usage.erased.segments) for path, usage in usages])
    page.rows(_ERASED_WRITTEN, [((path,), usage.erased.written_bytes) for path, usage in usages])
    spaces = {}
    for path, usage in usages:
        spaces[path] = yield from space_of(directories, path, usage)
    page.rows(_LIVE, [((path,), space.live_bytes) for path, space in spaces.items()])
    page.rows(_DELETED, [((path,), space.deleted.total()) for path, space in spaces.items()])
    page.rows(
        _UNFREED,
        [((path, each.value), space.deleted[each]) for path, space in spaces.items() for each in UnfreedReason],
    )
    yield
