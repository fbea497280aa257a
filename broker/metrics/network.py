"""Connections, logins, sessions of fetches, what waits, and the memory that clients hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge
from lowtide.broker.metrics.sources import Scrape

_ROWS_A_STEP: Final = 1_000
_PROCESSOR: Final = "0"
"""There is one loop; Kafka numbers its threads."""

_CONNECTIONS: Final = gauge(
    "kafka_server_socket_server_metrics_connection_count", "Open connections.", "listener", "networkProcessor"
)
_LOGGING_IN: Final = gauge("lowtide_connections_logging_in", "Open connections that have still to log in.")
_LOGINS: Final = counter("lowtide_logins_total", "Logins by SASL, accepted and refused.", "listener", "outcome")
_PURGATORY: Final = gauge(
    "kafka_server_delayedoperationpurgatory_purgatorysize",
    "Requests that wait in the purgatory of their kind.",
    "delayedOperation",
)
_SESSIONS: Final = gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", "Open sessions of incremental fetches."
)
_SESSION_PARTITIONS: Final = gauge(
    "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions in them."
)
_REQUEST_MEMORY: Final = gauge(
    "lowtide_request_memory_bytes", "Memory of large requests that arrive (`queued.max.request.bytes`).", unit="bytes"
)
_ANSWER_MEMORY: Final = gauge(
    "lowtide_answers_unread_bytes",
    "Answers that clients haven't read (`lowtide.answers.unread.max.bytes`).",
    unit="bytes",
)
_LARGE_ROWS: Final = gauge(
    "lowtide_large_request_rows", "Rows of large requests in memory (`lowtide.request.rows.max`)."
)
_SLOW_LANE: Final = gauge(
    "lowtide_slow_lane_connections", "Connections that wait for a turn: their addresses have sent damaged frames."
)
_TURNS: Final = gauge("lowtide_turns_waiting", "Pieces of long work that wait for their turn.")

METRICS: Final = (
    _CONNECTIONS,
    _LOGGING_IN,
    _LOGINS,
    _PURGATORY,
    _SESSIONS,
    _SESSION_PARTITIONS,
    _REQUEST_MEMORY,
    _ANSWER_MEMORY,
    _LARGE_ROWS,
    _SLOW_LANE,
    _TURNS,
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them."""
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
