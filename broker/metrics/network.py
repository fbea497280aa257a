"""Metrics of connections, logins, fetch sessions, waiting requests, and the memory that clients use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape

_ROWS_A_STEP: Final = 1_000
_PROCESSOR: Final = "0"
"""Kafka numbers its network threads; here there is one loop."""

_CONNECTIONS: Final = gauge(
    "kafka_server_socket_server_metrics_connection_count",
    "The number of open connections.",
    "listener",
    "networkProcessor",
)
_LOGGING_IN: Final = gauge("lowtide_connections_logging_in", "The number of open connections that have not logged in.")
_LOGINS: Final = counter("lowtide_logins_total", "The number of SASL logins, by outcome.", "listener", "outcome")
_PURGATORY: Final = gauge(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "The number of requests in a purgatory.",
    "delayedOperation",
)
_SESSIONS: Final = gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "The number of open incremental fetch sessions."
)
_SESSION_PARTITIONS: Final = gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
    "The number of partitions in incremental fetch sessions.",
)
_REQUEST_MEMORY: Final = gauge(
    "lowtide_request_memory_bytes",
    "The memory of large requests that are being received (`queued.max.request.bytes`).",
    unit="bytes",
)
_ANSWER_MEMORY: Final = gauge(
    "lowtide_answers_unread_bytes",
    "The size of responses that clients have not read (`lowtide.answers.unread.max.bytes`).",
    unit="bytes",
)
_LARGE_ROWS: Final = gauge(
    "lowtide_large_request_rows", "The number of rows of large requests in memory (`lowtide.request.rows.max`)."
)
_SLOW_LANE: Final = gauge(
    "lowtide_slow_lane_connections", "The number of waiting connections from addresses that sent invalid frames."
)
_TURNS: Final = gauge("lowtide_turns_waiting", "The number of long-running tasks that wait for their turn.")


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    sources = scrape.sources
    host, broker = sources.host, sources.broker
    open_by = Counter({listener.name: 0 for listener in broker.config.listeners})
    for count, connection in enumerate(list(host.connections), 1):
        open_by[connection.listener_name] += 1
        if count % _ROWS_A_STEP == 0:
            yield
    page.rows(_CONNECTIONS, [((listener, _PROCESSOR), count) for listener, count in sorted(open_by.items())])
    page.one(_LOGGING_IN, len(host.logins))
    page.rows(_LOGINS, sorted(host.dispatcher.times.logins.items()))
    waiting = broker.replicas.waiting
    sizes = {
        "Produce": len(waiting.commits) + len(waiting.flushes),
        "Fetch": len(waiting.fetches) + len(waiting.follower_fetches) + len(waiting.session_fetches),
        "DeleteRecords": len(waiting.deletes) + len(waiting.log_starts),
    }
    page.rows(_PURGATORY, [((name,), size) for name, size in sizes.items()])
    page.one(_SESSIONS, len(broker.sessions))
    page.one(_SESSION_PARTITIONS, broker.sessions.slots.partitions)
    page.one(_REQUEST_MEMORY, host.memory.used_bytes + host.memory.begun_bytes)
    page.one(_ANSWER_MEMORY, host.answers.used_bytes)
    page.one(_LARGE_ROWS, host.large_requests.rows_alive)
    page.one(_SLOW_LANE, len(host.lane))
    page.one(_TURNS, len(broker.turns))
    yield
