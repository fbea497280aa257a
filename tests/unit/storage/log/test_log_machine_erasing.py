"""The histories of `test_log_machine.py` with deleted records that are erased, and mistakes in erasing that they find.

Between the steps of an erasure anything may happen to the log, or to its process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import read_batch_header
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.storage.compaction import erasing
from lowtide.storage.directory.log_erasure import ErasureStep, LogErasure, next_step
from lowtide.storage.directory.log_settings import DirectoryPorts
from lowtide.storage.log.erased_reads import without_erased
from lowtide.storage.log.log import Log, RemovedSegment
from lowtide.storage.log.log_holes import LogHoles
from lowtide.storage.log.segment_swap import SegmentSwaps
from lowtide.storage.log.segments.segment import Segment
from tests.examples import examples
from tests.unit.storage.log.test_log_machine import DIRECTORY, LogMachine, carry_out
from tests.unit.storage.log.test_log_machine_plants import finds

TELLING_BYTES = 8
"""A random value of so many bytes is nowhere else."""


class ErasingLogMachine(LogMachine):
    """An erasure is begun, and continues a step at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: deque[Callable[[], None]] = deque()
        self.is_erasing = False

    def wall_ms(self) -> int:
        return self.now_ms

    def submit(self, work: Any, on_done: Callable[[Any], None]) -> None:
        """As a worker, and as a committer."""
        self.jobs.append(lambda: on_done(carry_out(self.filesystem, work) if isinstance(work, Barrier) else work()))

    def _ports(self) -> DirectoryPorts:
        this = cast("Any", self)
        return DirectoryPorts(
            filesystem=self.filesystem, clock=this, committer=this, worker=this, random=this, cache=this
        )

    @rule()
    def begin_erasing(self) -> None:
        if self.is_erasing:
            return
        step = next_step(self.log, makes_holes=False)
        if step is ErasureStep.REMOVE_SEGMENTS:
            if self.log_start == len(self.rows):
                self.log.roll(self.now_ms)
            self._unlink(self.log, self.log.files.remove_below(self.log.log_start_offset, self.log.config))
        elif step is ErasureStep.REWRITE:
            self._rewrite(self.log.segments[0])

    def _rewrite(self, segment: Segment) -> None:
        log = self.log
        erasure = LogErasure(log, segment, self._ports(), lambda each: each is self.log, self._unlink, self._on_erased)
        erasure.begin()
        self.is_erasing = True

    def _unlink(self, _log: Log, removed: list[RemovedSegment]) -> None:
        for segment in removed:
            segment.mark_deleted(self.filesystem)
            segment.unlink(self.filesystem)

    def _on_erased(self, error: Exception | None) -> None:
        assert error is None
        self.is_erasing = False

    @rule()
    def go_on(self) -> None:
        if self.jobs:
            self.jobs.popleft()()

    @rule()
    def erase(self) -> None:
        """To the end: then no record below the log start is left."""
        for _ in range(4):
            self.begin_erasing()
            while self.jobs:
                self.go_on()
        assert next_step(self.log, makes_holes=False) is ErasureStep.NOTHING
        LogHoles(self.log).on_erased(self.log_start)

    @rule(share=st.floats(0, 1), steps=st.integers(0, 6), power=st.booleans(), finishes=st.booleans())
    def delete_and_erase(self, share: float, steps: int, power: bool, finishes: bool) -> None:
        self.commit()
        self.delete_prefix(share, send_away=True)
        self.begin_erasing()
        for _ in range(steps):
            self.go_on()
        if finishes:
            self.erase()
        elif power:
            self.flush()
            self.cut_power()

    @rule(share=st.floats(0, 1), cut=st.floats(0, 1), steps=st.integers(0, 6), sizes=LogMachine.sizes)
    def truncate_while_erasing(self, share: float, cut: float, steps: int, sizes: list[int]) -> None:
        self.commit()
        self.delete_prefix(share, send_away=True)
        self.begin_erasing()
        for _ in range(steps):
            self.go_on()
        self.truncate(cut)
        self._append(sizes, idempotent=False)
        self.erase()

    @rule(first=st.floats(0, 1), share=st.floats(0, 1), dies=st.booleans())
    def erase_while_a_delete_is_not_durable(self, first: float, share: float, dies: bool) -> None:
        self.commit()
        self.delete_prefix(first, send_away=True)
        self.log.request_log_start(self.log_start + round((self.high_watermark - self.log_start) * share))
        self.erase()
        if dies:
            self.kill()

    @rule(after=st.integers(1, 16), power=st.booleans())
    def die_while_erasing(self, after: int, power: bool) -> None:
        self.flush()
        self.filesystem.crash_at = self.filesystem.operation_count + after
        try:
            self.erase()
        except SimulatedCrashError:
            pass
        if power:
            self.cut_power()
        else:
            self.kill()

    def _load(self, *, clean: bool, lowest: int) -> None:
        self.jobs.clear()
        self.is_erasing = False
        super()._load(clean=clean, lowest=lowest)
        assert not [name for name in self.filesystem.listdir(DIRECTORY) if name.endswith(".cleaned")]

    @invariant()
    def what_is_erased_is_in_no_segment(self) -> None:
        gone = min(self.log.segments[0].gone_offset, self.log_start)
        values = [row.value for row in self.rows[:gone] if len(row.value) >= TELLING_BYTES]
        if values:
            for segment in self.log.segments:
                content = self.filesystem.read_bytes(segment.path)[: segment.size]
                assert not any(value in content for value in values), segment


ErasingLogMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
test_any_history_of_a_log_that_is_erased = ErasingLogMachine.TestCase


def test_an_erasure_that_drops_a_live_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(path: str, position: int, batch: Any, erased: OffsetRanges) -> Any:
        return without_erased(path, position, batch, OffsetRanges((first, last + 1) for first, last in erased))

    monkeypatch.setattr(erasing, "without_erased", too_much)
    finds(ErasingLogMachine)


def test_an_erasure_that_leaves_a_deleted_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erasing, "without_erased", lambda _path, _at, batch, _erased: (read_batch_header(batch), batch))
    finds(ErasingLogMachine)


def test_an_erasure_before_the_delete_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = LogErasure.begin

    def too_early(self: LogErasure) -> None:
        self._log_start_offset = self.log.log_start_pending
        begin(self)

    monkeypatch.setattr(LogErasure, "begin", too_early)
    finds(ErasingLogMachine)


class OftenCut(ErasingLogMachine):
    """With truncations that come between the steps of an erasure for sure."""

    @rule(share=st.floats(0.2, 0.6), cut=st.floats(0.2, 0.8), steps=st.integers(0, 3))
    def cut_the_segment_that_is_written_again(self, share: float, cut: float, steps: int) -> None:
        for _ in range(3):
            self._append([20, 20, 20], idempotent=False)
        self.truncate_while_erasing(share, cut, steps, [20])


def test_an_erasure_that_is_swapped_in_though_the_log_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentSwaps, "are_unchanged", lambda _self, _seen: True)
    finds(OftenCut)


@pytest.mark.slow
def test_a_new_segment_that_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = erasing.SegmentErasure._finish

    def unsynced(self: erasing.SegmentErasure) -> None:
        target = self._target
        assert target is not None

        class Unsynced:
            def sync(self) -> None:
                """Nothing reaches the disk."""

        self._target = cast("Any", Unsynced())
        finish(self)

    monkeypatch.setattr(erasing.SegmentErasure, "_finish", unsynced)
    finds(ErasingLogMachine)
