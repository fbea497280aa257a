"""Metrics of the process and its event loop.

A broker has one loop for everything, so the idle time of Kafka's network processors and of its request handlers are the
same: the part of the time in which the loop's thread did not run since the last scrape.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge, histogram
from lowtide.broker.metrics.sources import Scrape
from lowtide.runtime.loop_lag import BOUNDS_MS, HistogramSnapshot
from lowtide.runtime.process import installed_version

_NETWORK_IDLE: Final = gauge(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "The part of the time, 0 to 1, in which the event loop is idle.",
)
_HANDLERS_IDLE: Final = gauge(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "The same value, because there is one event loop.",
)
_LAG: Final = histogram(
    "lowtide_loop_lag_seconds",
    "The delay of a timer of the event loop, which is the delay of requests before they are read.",
)
_HELD: Final = histogram("lowtide_loop_held_seconds", "The part of the delay that the broker's own code causes.")
_LAG_MAX: Final = gauge("lowtide_loop_lag_max_seconds", "The longest delay since the start.", unit="seconds")
_BROKER_STATE: Final = gauge("kafka_server_kafkaserver_brokerstate", "3 while the broker is running.")
_BUILD: Final = gauge("lowtide_build_info", "1, with the version as label.", "version")
_NODE: Final = gauge("lowtide_broker_info", "1, with the broker id and cluster id as labels.", "node_id", "cluster_id")
_CPU: Final = counter("process_cpu_seconds_total", "The user and system CPU time of the process.", unit="seconds")
_RESIDENT: Final = gauge("process_resident_memory_bytes", "The resident memory of the process.", unit="bytes")
_VIRTUAL: Final = gauge("process_virtual_memory_bytes", "The virtual memory of the process.", unit="bytes")
_START: Final = gauge(
    "process_start_time_seconds", "The start time of the process, in seconds since 1970.", unit="seconds"
)
_OPEN: Final = gauge("process_open_fds", "The number of open file descriptors.")
_OPEN_MAX: Final = gauge("process_max_fds", "The maximum number of open file descriptors.")
_DISK: Final = {
    "read_bytes": counter(
        "kafka_server_kafkaserver_linux_disk_read_bytes", "The bytes that the process read from disks.", unit="bytes"
    ),
    "write_bytes": counter(
        "kafka_server_kafkaserver_linux_disk_write_bytes", "The bytes that the process wrote to disks.", unit="bytes"
    ),
    "rchar": counter(
        "kafka_server_kafkaserver_linux_disk_rchar",
        "The bytes that the process read with system calls, also from the page cache.",
        unit="bytes",
    ),
    "wchar": counter(
        "kafka_server_kafkaserver_linux_disk_wchar",
        "The bytes that the process wrote with system calls, also to the page cache.",
        unit="bytes",
    ),
    "syscr": counter("kafka_server_kafkaserver_linux_disk_syscr", "The number of system calls that read."),
    "syscw": counter("kafka_server_kafkaserver_linux_disk_syscw", "The number of system calls that wrote."),
    "cancelled_write_bytes": counter(
        "kafka_server_kafkaserver_linux_disk_cancelled_write_bytes",
        "The bytes in the page cache that were discarded before they were written to a disk.",
        unit="bytes",
    ),
}
"""By the name in `/proc/self/io`."""
_THREADS: Final = gauge("process_threads", "The number of threads.")
_COLLECTIONS: Final = counter("python_gc_collections_total", "The number of garbage collections.", "generation")


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    sources = scrape.sources
    idle = scrape.idle.share(sources.broker.clock.monotonic_ns(), sources.read_usage().cpu_ns)
    page.one(_NETWORK_IDLE, idle)
    page.one(_HANDLERS_IDLE, idle)
    lag = sources.loop_lag()
    for metric, snapshot in ((_LAG, lag.lag), (_HELD, lag.held)):
        page.histogram(metric, [_in_seconds(snapshot)])
    page.one(_LAG_MAX, lag.lag.max_ms / 1000)
    page.one(_BROKER_STATE, 3)
    page.rows(_BUILD, [((installed_version(),), 1)])
    page.rows(_NODE, [((sources.broker.config.node_id, sources.broker.metadata.image.cluster_id), 1)])
    yield
    figures = sources.read_process()
    page.one(_CPU, figures.cpu_s)
    page.one(_RESIDENT, figures.resident_bytes)
    page.one(_VIRTUAL, figures.virtual_bytes)
    page.one(_START, figures.started_s)
    page.one(_OPEN, figures.open_files)
    page.one(_OPEN_MAX, figures.open_files_max)
    page.one(_THREADS, figures.threads)
    for name, metric in _DISK.items():
        page.one(metric, figures.io.get(name, 0))
    page.rows(_COLLECTIONS, [((number,), each["collections"]) for number, each in enumerate(gc.get_stats())])
    yield


def _in_seconds(snapshot: HistogramSnapshot) -> tuple[tuple[()], tuple[float, ...], tuple[int, ...], float]:
    return (), tuple(bound / 1000 for bound in BOUNDS_MS), snapshot.cumulative_counts, snapshot.sum_ms / 1000
