"""The histories of `test_log_machine.py` with a log that starts over where its leader's does, within a batch or not."""

from __future__ import annotations

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from lowtide.protocol.batch_building import build_batch
from lowtide.runtime.filesystem.memory import SimulatedCrashError
from lowtide.storage.log.log_values import FollowerAppend
from lowtide.storage.log.truncation import LogTruncation
from tests.examples import examples
from tests.unit.storage.log.test_log_machine import LogMachine, Row, carry_out


class FollowingLogMachine(LogMachine):
    """As a replica whose leader has deleted all that it has, and more."""

    @rule(ahead=st.integers(0, 3), before=st.integers(0, 3), sizes=LogMachine.sizes, is_flushed=st.booleans())
    def start_over(self, ahead: int, before: int, sizes: list[int], is_flushed: bool) -> None:
        """The first batch that it gets may begin below its start: then it has a segment for that."""
        start = len(self.rows) + ahead
        truncation = LogTruncation(self.log).truncate_fully_and_start_at(
            start, leader_epoch=self.leader_epoch, now_ms=self.now_ms
        )
        carry_out(self.filesystem, truncation.barrier)
        self._unlink(truncation.removed)
        self.rows = [Row(b"", -1, offset, offset, -1) for offset in range(start)]
        self.log_start = self.synced_end = self.high_watermark = start
        self.next_sequence, self.slices, self.unsent, self.pending, self.noted = 0, [], [], None, None
        self._take_first(max(start - before, 0), sizes)
        if is_flushed:
            self.flush()

    @rule(
        after=st.integers(1, 16),
        before=st.integers(0, 3),
        sizes=LogMachine.sizes,
        is_flushed=st.booleans(),
        power=st.booleans(),
    )
    def die_while_it_starts_over(
        self, after: int, before: int, sizes: list[int], is_flushed: bool, power: bool
    ) -> None:
        """The journal had the new start before anything was done."""
        lowest = self.log_start = len(self.rows)
        self.filesystem.crash_at = self.filesystem.operation_count + after
        with contextlib.suppress(SimulatedCrashError):
            self.start_over(0, before, sizes, is_flushed)
            lowest = len(self.rows) if is_flushed or not power else lowest
        if power:
            self.filesystem.power_cut()
        else:
            self.filesystem.crash_process()
        self._load(clean=False, lowest=lowest)

    def _take_first(self, base_offset: int, sizes: list[int]) -> None:
        start, values = (
            self.log_start,
            [self.random.randbytes(size) for size in [0] * (self.log_start - base_offset) + sizes],
        )
        content = build_batch(
            [(self.now_ms, None, each, ()) for each in values], base_offset=base_offset, leader_epoch=self.leader_epoch
        )
        last = base_offset + len(values) - 1
        self.rows[base_offset:] = [Row(value, self.leader_epoch, base_offset, last, -1) for value in values]
        taken = self.log.append_as_follower(memoryview(content), now_ms=self.now_ms)
        assert isinstance(taken, FollowerAppend)
        self._unlink(taken.removed)
        assert (self.log.log_start_offset, self.log.log_end_offset) == (start, last + 1)

    def _unlink(self, removed: list) -> None:
        for segment in removed:
            segment.mark_deleted(self.filesystem)
            segment.unlink(self.filesystem)


FollowingLogMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30, deadline=None)
test_any_history_of_a_follower = FollowingLogMachine.TestCase
