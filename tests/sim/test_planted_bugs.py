"""Bugs planted on purpose: each must be found within 2,000 seeds, otherwise the simulator proves nothing."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.simulation.broker_simulation import simulate
from lowtide.storage.directory import log_starts
from lowtide.storage.log import offsets
from lowtide.storage.log.opening import log_recovery as recovery
from lowtide.storage.log_start import journal as log_start
from lowtide.storage.log_start import journal_format as log_start_format

from .planting import find

MAXIMUM_SEEDS = 2000


def test_unlink_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are removed when a delete is accepted, before the journal has it."""
    original = log_starts.DirectoryLogStarts.request_log_starts

    def request(self: Any, increments: Any, on_durable: Any) -> None:
        for log, offset in increments:
            for segment, following in zip(log.segments, log.segments[1:], strict=False):
                if following.base_offset <= offset and log.files.filesystem.exists(segment.path):
                    log.files.filesystem.unlink(segment.path)
        original(self, increments, on_durable)

    monkeypatch.setattr(log_starts.DirectoryLogStarts, "request_log_starts", request)
    find("is gone though its records are not deleted", simulate, range(MAXIMUM_SEEDS))


def test_visible_before_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log start is visible when it is accepted, and may be lower after a power cut."""
    original = log_starts.DirectoryLogStarts.request_log_starts

    def request(self: Any, increments: Any, on_durable: Any) -> None:
        original(self, increments, on_durable)
        for log, offset in increments:
            self._make_log_start_visible(log, offset, [])

    monkeypatch.setattr(log_starts.DirectoryLogStarts, "request_log_starts", request)
    find("its log start fell from", simulate, range(MAXIMUM_SEEDS))


@pytest.mark.slow
def test_largest_of_the_journal_instead_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation below the log start writes a lower one; using the largest deletes later records."""

    def apply(state: dict[Any, int], entries: Any) -> None:
        for topic_id, partition, offset in entries:
            key = (topic_id, partition)
            state[key] = max(offset, state.get(key, -1))

    for module in (log_start, log_start_format):
        monkeypatch.setattr(module, "apply_entries", apply)
    find("no request deletes beyond", simulate, range(MAXIMUM_SEEDS))


@pytest.mark.slow
def test_epoch_file_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leader epochs beyond the log's end survive a truncation."""

    def keep(_self: Any, _end: int) -> bool:
        return False

    monkeypatch.setattr(offsets.LeaderEpochs, "truncate_from_end", keep)
    find("its leader epochs go beyond its end", simulate, range(MAXIMUM_SEEDS))


def test_torn_tail_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery accepts batches with a wrong checksum."""

    class Anything(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    monkeypatch.setattr(recovery, "crc32c", lambda *_: Anything())
    find("has a wrong CRC", simulate, range(MAXIMUM_SEEDS))
