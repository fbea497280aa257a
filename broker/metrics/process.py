"""The process and its event loop: what Kafka's boards call idle threads, how late the loop is, memory, descriptors and CPU.

A broker has one loop for everything, so the idle share of network processors and that of request handlers are the same: the part of the
time in which the loop's thread did not run, since the scrape before.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge, histogram
from lowtide.broker.metrics.sources import Scrape
from lowtide.runtime.loop_lag import BOUNDS_MS, HistogramSnapshot

_NETWORK_IDLE: Final = gauge(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "Share of the time, 0 to 1, in which the loop is idle.",
)
_HANDLERS_IDLE: Final = gauge(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", "The same: there is one loop."
)
_LAG: Final = histogram(
    "lowtide_loop_lag_seconds", "How late a timer of the event loop rings: what requests wait before they are seen."
)
_HELD: Final = histogram("lowtide_loop_held_seconds", "The part of that lateness which the broker itself causes.")
_LAG_MAX: Final = gauge("lowtide_loop_lag_max_seconds", "The longest since the start.", unit="seconds")
_BROKER_STATE: Final = gauge("kafka_server_kafkaserver_brokerstate", "3 while the broker serves.")
_BUILD: Final = gauge("lowtide_build_info", "1, with the version.", "version")
_NODE: Final = gauge("lowtide_broker_info", "1, with the broker's id and cluster.", "node_id", "cluster_id")
_CPU: Final = counter("process_cpu_seconds_total", "CPU time of the process, user and system.", unit="seconds")
_RESIDENT: Final = gauge("process_resident_memory_bytes", "Resident memory.", unit="bytes")
_VIRTUAL: Final = gauge("process_virtual_memory_bytes", "Virtual memory.", unit="bytes")
_START: Final = gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", unit="seconds")
_OPEN: Final = gauge("process_open_fds", "Open descriptors.")
_OPEN_MAX: Final = gauge("process_max_fds", "How many may be open.")
_DISK_READ: Final = counter(
    "kafka_server_kafkaserver_linux_disk_read_bytes", "Bytes that the process had disks read.", unit="bytes"
)
_DISK_WRITTEN: Final = counter(
    "kafka_server_kafkaserver_linux_disk_write_bytes", "Bytes that it had them write.", unit="bytes"
)
_THREADS: Final = gauge("process_threads", "Threads.")
_COLLECTIONS: Final = counter("python_gc_collections_total", "Runs of the garbage collector.", "generation")

METRICS: Final = (
    _NETWORK_IDLE,
    _HANDLERS_IDLE,
    _LAG,
    _HELD,
    _LAG_MAX,
    _BROKER_STATE,
    _BUILD,
    _NODE,
    _CPU,
    _RESIDENT,
    _VIRTUAL,
    _START,
    _OPEN,
    _OPEN_MAX,
    _THREADS,
    _DISK_READ,
    _DISK_WRITTEN,
    _COLLECTIONS,
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them."""
    sources = scrape.sources
    idle = scrape.idle.share(sources.broker.clock.monotonic_ns(), sources.read_usage().cpu_ns)
    page.one(_NETWORK_IDLE, idle)
    page.one(_HANDLERS_IDLE, idle)
    lag = sources.loop_lag()
    for metric, snapshot in ((_LAG, lag.lag), (_HELD, lag.held)):
        page.histogram(metric, [_in_seconds(snapshot)])
    page.one(_LAG_MAX, lag.lag.max_ms / 1000)
    page.one(_BROKER_STATE, 3)
    page.rows(_BUILD, [((_version(),), 1)])
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
    page.one(_DISK_READ, figures.disk_read_bytes)
    page.one(_DISK_WRITTEN, figures.disk_written_bytes)
    page.rows(_COLLECTIONS, [((number,), each["collections"]) for number, each in enumerate(gc.get_stats())])
    yield


def _in_seconds(snapshot: HistogramSnapshot) -> tuple[tuple[()], tuple[float, ...], tuple[int, ...], float]:
    return (), tuple(bound / 1000 for bound in BOUNDS_MS), snapshot.cumulative_counts, snapshot.sum_ms / 1000


@cache
def _version() -> str:
    return version("lowtide")
