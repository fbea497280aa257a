"""Metrics of syncs by log directory, log start journals, and writes of the metadata.

All durable writes of a log directory go through its committer: flushes, checkpoints, and frames of the log start
journal, as part of one round. So the time of a round is that of a delete in the journal, without the wait before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge, histogram
from lowtide.broker.metrics.sources import Scrape
from lowtide.runtime.committer import BOUNDS_S, Durations
from lowtide.storage.errors import StorageError

_ROUNDS: Final = histogram("lowtide_commit_seconds", "The time of a round of syncs of a log directory.", "directory")
_ROUND_MAX: Final = gauge(
    "lowtide_commit_max_seconds", "The longest round since the start.", "directory", unit="seconds"
)
_BARRIERS: Final = counter(
    "lowtide_commit_requests_total", "The number of requested syncs; one round serves all that wait.", "directory"
)
_SYNCS: Final = counter(
    "lowtide_commit_syncs_total", "The number of files and directories that were synced.", "directory"
)
_WAITING: Final = gauge("lowtide_commit_waiting", "The number of requested syncs that are not complete.", "directory")
_JOURNAL: Final = gauge(
    "lowtide_log_start_journal_size_bytes", "The size of the log start journal.", "directory", unit="bytes"
)
_ENTRIES: Final = gauge(
    "lowtide_log_start_journal_entries", "The number of partitions in the log start journal.", "directory"
)
_WRITES: Final = histogram(
    "lowtide_metadata_write_seconds", "The time of a metadata write by this broker, until the store answers."
)
_WRITE_MAX: Final = gauge(
    "lowtide_metadata_write_max_seconds", "The longest metadata write since the start.", unit="seconds"
)
_METADATA: Final = gauge(
    "lowtide_metadata_size_bytes",
    "The size of the embedded metadata store, including its journal.",
    unit="bytes",
)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Writes the metrics, in steps."""
    sources = scrape.sources
    directories = sources.broker.replicas.log_manager.directories
    commits = [((path,), directories.committers[path].figures) for path in directories.paths]
    page.histogram(_ROUNDS, [_row(labels, figures.rounds) for labels, figures in commits])
    page.rows(_ROUND_MAX, [(labels, figures.rounds.longest_ns / 1e9) for labels, figures in commits])
    page.rows(_BARRIERS, [(labels, figures.submitted) for labels, figures in commits])
    page.rows(_SYNCS, [(labels, figures.syncs) for labels, figures in commits])
    page.rows(_WAITING, [(labels, figures.submitted - figures.answered) for labels, figures in commits])
    journals = []
    for path in directories.paths:
        with suppress(StorageError):  # The directory is offline.
            journals.append(((path,), directories.usage(path).journal))
    page.rows(_JOURNAL, [(labels, size.size_bytes) for labels, size in journals])
    page.rows(_ENTRIES, [(labels, size.entries) for labels, size in journals])
    yield
    times = sources.broker.metadata.write_times
    page.histogram(_WRITES, [_row((), times)])
    page.one(_WRITE_MAX, times.longest_ns / 1e9)
    paths = (sources.metadata_file, f"{sources.metadata_file}-wal") if sources.metadata_file else ()
    sizes = [sources.filesystem.file_size(path) for path in paths if sources.filesystem.exists(path)]
    page.rows(_METADATA, [((), sum(sizes))] if sizes else [])
    yield


def _row(labels: tuple[str, ...], times: Durations) -> tuple[tuple[str, ...], tuple[float, ...], list[int], float]:
    counts = list(accumulate(times.counts))
    return labels, BOUNDS_S, counts, times.total_ns / 1e9
