"""Events at each single step of a compaction: a full disk, a removed log, a truncation."""

from __future__ import annotations

import pytest

from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.filesystem.planned_faults import Operation
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.loader import create_log
from lowtide.storage.log.truncation import LogTruncation

from .compacting import CONFIG, NOW_MS
from .test_log_cleaning import contents_on_the_way, filled


@pytest.mark.parametrize("lasts", [1, 4, 1000])
@pytest.mark.parametrize("crashes", [False, True])
def test_no_room_at_any_step_is_no_disk_failure(lasts: int, crashes: bool) -> None:
    """Not even at the last renames of a swap, when old segments go: the log reads files under temporary names."""
    expected = contents_on_the_way()
    for first in range(1, 200):
        log = filled()
        count = 0

        def lacks_room(_operation: Operation, _path: str) -> bool:
            nonlocal count
            count += 1
            return first <= count < first + lasts

        log.filesystem.lacks_room = lacks_room
        log.begin_cleaning()
        while log.step() or (log.stalled and count < first + lasts and not (crashes or lasts == 1000)):
            stalled, log.stalled[:] = list(log.stalled), []
            for step in stalled:
                step()
        assert log.failures == [], first
        assert log.batches() in expected, first
        if crashes:
            log.filesystem.crash_process()
            log.reopen()
            assert log.batches() in expected, first
        log.filesystem.lacks_room = None
        stalled, log.stalled[:] = ([] if crashes else list(log.stalled)), []
        for step in stalled:
            step()
        while log.step():
            pass
        assert len(log.reports) == 1 or crashes, first
        log.flush()
        log.clean()
        assert (log.failures, log.batches()) == ([], expected[-1]), first
        assert [each.first_offset for each in log.log.files.aborted.collect(0, 0, 20)] == [3]
        assert not [name for name in log.names() if name.endswith((".cleaned", ".swap")) or ".swap." in name], first
        if count < first:
            break
    else:
        pytest.fail("the compaction never ended")


def test_a_log_that_is_removed_at_any_step_is_no_disk_failure() -> None:
    """Its folder is renamed, so a completion of the committer finds its files missing."""
    for steps in range(60):
        log = filled()
        log.begin_cleaning()
        went_on = [log.step() for _ in range(steps)]
        left, log.log = (
            log.log,
            create_log(
                LogPlace(
                    filesystem=MemoryFileSystem(),
                    directory="/other",
                    config=CONFIG,
                    topic_partition=log.log.topic_partition,
                    topic_id=b"another topic id",
                ),
                now_ms=NOW_MS,
            ),
        )
        log.filesystem.rename(left.directory, f"{left.directory}.gone-delete")
        while log.step():
            pass
        assert log.failures == [], steps
        assert len(log.reports) == 1, steps
        if not all(went_on):
            break
    else:
        pytest.fail("the compaction never ended")


def test_what_is_written_and_not_used_is_removed_before_the_log_is_released() -> None:
    """Two segments are written when the log changes. They may have records that are erased next."""
    log = filled()
    cleaning = log.begin_cleaning()
    while len([name for name in log.names() if name.endswith((".log.swap", ".log.cleaned"))]) < 3:
        assert log.worker.step()
    LogTruncation(log.log).truncate_to(2, now_ms=NOW_MS)
    while log.step():
        pass
    assert cleaning is not None
    assert not [name for name in log.names() if name.endswith((".swap", ".cleaned"))]
    assert not log.log.swaps.is_taken
    (report,) = log.reports
    assert (report.done, report.failure, log.failures) == (None, None, [])


def test_a_truncation_at_any_step_lowers_how_far_the_log_is_compacted_when_that_ends() -> None:
    """Also one between the last swap and the end, when there is nothing left to cancel."""
    for steps in range(60):
        log = filled()
        log.begin_cleaning()
        went_on = [log.step() for _ in range(steps)]
        LogTruncation(log.log).truncate_to(2, now_ms=NOW_MS)
        while log.step():
            pass
        assert (log.log.swaps.cleaned_to or 0) <= log.log.log_end_offset, steps
        if not all(went_on):
            break
    else:
        pytest.fail("the compaction never ended")
