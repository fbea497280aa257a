"""Bugs planted on purpose: each must be found within 2,000 seeds, or the simulator's silence means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.simulation.broker_simulation import simulate
from lowtide.storage.directory import log_starts
from lowtide.storage.log import leader_epochs
from lowtide.storage.log import log_recovery as recovery
from lowtide.storage.log_start import journal as log_start
from lowtide.storage.log_start import journal_format as log_start_format

MAXIMUM_SEEDS = 2000


def found_at() -> int:
    """The first seed that finds something wrong, whatever form that takes. Without the plant the same seeds find nothing."""
    for seed in range(MAXIMUM_SEEDS):
        try:
            simulate(seed)
        except Exception as error:
            print(seed, repr(error))
            return seed
    pytest.fail(f"{MAXIMUM_SEEDS} seeds found nothing")


def test_unlink_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are removed when a delete is accepted, before the journal has it."""
    original = log_starts.DirectoryLogStarts.request_log_starts

    def request(self: Any, increments: Any, on_durable: Any) -> None:
        for log, offset in increments:
            for segment, following in zip(log.segments, log.segments[1:], strict=False):
                if following.base_offset <= offset and log._filesystem.exists(segment.path):
                    log._filesystem.unlink(segment.path)
        original(self, increments, on_durable)

    monkeypatch.setattr(log_starts.DirectoryLogStarts, "request_log_starts", request)
    found_at()


def test_visible_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log start is told when it is accepted, and may be lower after a power cut."""
    original = log_starts.DirectoryLogStarts.request_log_starts

    def request(self: Any, increments: Any, on_durable: Any) -> None:
        original(self, increments, on_durable)
        for log, offset in increments:
            self._make_log_start_visible(log, offset)

    monkeypatch.setattr(log_starts.DirectoryLogStarts, "request_log_starts", request)
    found_at()


def test_largest_of_the_journal_instead_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation below the log start writes a lower one; taking the largest deletes what was appended since."""

    def apply(state: dict[Any, int], entries: Any) -> None:
        for topic_id, partition, offset in entries:
            key = (topic_id, partition)
            state[key] = max(offset, state.get(key, -1))

    for module in (log_start, log_start_format):
        monkeypatch.setattr(module, "apply_entries", apply)
    found_at()


def test_epoch_file_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader epochs beyond the log's end survive a truncation."""

    def keep(_self: Any, _end: int) -> bool:
        return False

    monkeypatch.setattr(leader_epochs.LeaderEpochs, "truncate_from_end", keep)
    found_at()


def test_torn_tail_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery believes batches whose checksum is wrong."""

    class Anything(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    monkeypatch.setattr(recovery, "crc32c", lambda *_: Anything())
    found_at()
