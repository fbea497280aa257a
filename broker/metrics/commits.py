"""What waits for disks and for the metadata store: rounds of syncs by log directory, journals of log starts, changes of the metadata.

All that a log directory has to make durable goes through its committer: flushes, checkpoints, and the frames of the journal of log starts,
each of which is a part of one round. So the time of a round is the time that the journal takes for a delete, but for the wait before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Final

from lowtide.broker.metrics.exposition import Page
from lowtide.broker.metrics.metric import counter, gauge, histogram
from lowtide.broker.metrics.sources import Scrape
from lowtide.runtime.durations import BOUNDS_S, Durations
from lowtide.storage.errors import StorageError

_ROUNDS: Final = histogram("lowtide_commit_seconds", "Rounds of syncs of a log directory.", "directory")
_ROUND_MAX: Final = gauge("lowtide_commit_max_seconds", "The longest since the start.", "directory", unit="seconds")
_BARRIERS: Final = counter(
    "lowtide_commit_requests_total", "What disks were to have; a round syncs for all that waits.", "directory"
)
_SYNCS: Final = counter("lowtide_commit_syncs_total", "Files and directories that were synced for it.", "directory")
_WAITING: Final = gauge("lowtide_commit_waiting", "Of these, what disks don't have yet.", "directory")
_JOURNAL: Final = gauge(
    "lowtide_log_start_journal_size_bytes", "What is written of the journal of log starts.", "directory", unit="bytes"
)
_ENTRIES: Final = gauge("lowtide_log_start_journal_entries", "Partitions whose log start it has.", "directory")
_WRITES: Final = histogram(
    "lowtide_metadata_write_seconds", "Changes of the metadata by this broker, until the store answers."
)
_WRITE_MAX: Final = gauge("lowtide_metadata_write_max_seconds", "The longest since the start.", unit="seconds")
_METADATA: Final = gauge(
    "lowtide_metadata_size_bytes",
    "Of the metadata of a broker that keeps them itself, with their journal.",
    unit="bytes",
)

METRICS: Final = (_ROUNDS, _ROUND_MAX, _BARRIERS, _SYNCS, _WAITING, _JOURNAL, _ENTRIES, _WRITES, _WRITE_MAX, _METADATA)


def write(scrape: Scrape, page: Page) -> Iterator[None]:
    """Write them."""
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
        with suppress(StorageError):  # It is offline.
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
