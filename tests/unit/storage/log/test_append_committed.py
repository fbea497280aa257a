"""What is committed with its append is appended as everything is, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.broker.coordinator.runtime.shard import make_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig
from lowtide.storage.log.markers import make_marker

from .test_append_runs import state_of
from .test_log import NOW_MS, append, new_log

RECORDS = st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=40)), min_size=1, max_size=3)
PRODUCERS, EPOCHS = st.integers(7, 8), st.integers(0, 2)


def marker(producer_id: int, epoch: int, coordinator_epoch: int, *, is_commit: bool, is_bumped: bool) -> Any:
    return make_marker(
        producer_id,
        epoch,
        is_commit=is_commit,
        coordinator_epoch=coordinator_epoch,
        epoch_is_bumped=is_bumped,
        now_ms=NOW_MS,
    )


BATCHES = st.one_of(
    st.builds(lambda records: make_batch(records, NOW_MS), RECORDS),
    st.builds(lambda records, *producer: make_batch(records, NOW_MS, producer), RECORDS, PRODUCERS, EPOCHS),
    st.builds(marker, PRODUCERS, EPOCHS, st.integers(0, 1), is_commit=st.booleans(), is_bumped=st.booleans()),
)


def append_plainly(log: Log, batch: Any, epoch: int) -> int | ErrorCode:
    appended = log.append_as_leader(batch, leader_epoch=epoch, now_ms=NOW_MS)
    if not isinstance(appended, AppendedBatch):
        return appended
    log.advance_high_watermark(log.log_end_offset)
    return appended.base_offset


def whole_state_of(log: Log) -> tuple[Any, ...]:
    transactions = log.producer_state.transactions
    return *state_of(log), log.last_stable_offset, len(transactions), log.transactions.any, log.disk_full


@given(
    steps=st.lists(st.tuples(BATCHES, st.sampled_from([0, 0, 0, 0, 1])), min_size=1, max_size=12),
    segment_bytes=st.sampled_from([200, 400, 1 << 20]),
    index_bytes=st.sampled_from([36, 60, 1 << 20]),
    flush_messages=st.sampled_from([1, 5, 1 << 40]),
)
def test_it_is_what_an_append_and_the_high_watermark_are(
    *, steps: list[tuple[Any, int]], segment_bytes: int, index_bytes: int, flush_messages: int
) -> None:
    config = LogConfig(
        segment_bytes=segment_bytes,
        segment_index_bytes=index_bytes,
        flush_messages=flush_messages,
        index_interval_bytes=80,
    )
    quick, plain = new_log(config), new_log(config)
    epoch = 0
    for batch, later in steps:
        epoch += later
        before, segments, is_known = whole_state_of(quick), len(quick.segments), quick.leader_epochs.latest == epoch
        base_offset: int | ErrorCode | None = quick.append_committed(batch, leader_epoch=epoch, now_ms=NOW_MS)
        is_quick = base_offset is not None
        if base_offset is None:
            assert whole_state_of(quick) == before
            base_offset = append_plainly(quick, batch, epoch)
        assert base_offset == append_plainly(plain, batch, epoch)
        assert whole_state_of(quick) == whole_state_of(plain)
        assert not (is_quick and quick.flush_is_due)
        is_usual = not isinstance(base_offset, ErrorCode) and before[2] and is_known and len(quick.segments) == segments
        assert is_quick or not is_usual or quick.flush_is_due, "this was as usual as can be"


def test_all_of_it_is_committed() -> None:
    log = new_log()
    append(log)
    assert log.append_committed(make_batch([(b"k", b"v")] * 3, NOW_MS), leader_epoch=0, now_ms=NOW_MS) == 1
    assert (log.high_watermark, log.log_end_offset) == (4, 4)


@pytest.mark.parametrize("free_bytes", [0, 1, 60])
def test_a_full_disk_leaves_the_log_as_it_was(free_bytes: int) -> None:
    filesystem = MemoryFileSystem()
    log = new_log(filesystem=filesystem)
    append(log)
    before, batch = state_of(log), make_batch([(b"k", b"v")], NOW_MS)
    filesystem.capacity_bytes = log.size_bytes + free_bytes
    assert log.append_committed(batch, leader_epoch=0, now_ms=NOW_MS) is None
    assert state_of(log) == before
    assert log.disk_full
    filesystem.capacity_bytes = None
    assert log.append_committed(batch, leader_epoch=0, now_ms=NOW_MS) == 1
    assert not log.disk_full


def test_a_failing_disk_ends_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log()
    append(log)

    def fail(*_: Any) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setattr(type(log.segments[-1]), "write", fail)
    batch = make_batch([(b"k", b"v")], NOW_MS)
    with pytest.raises(StorageError):
        log.append_committed(batch, leader_epoch=0, now_ms=NOW_MS)
    assert log.offline
    assert log.append_committed(batch, leader_epoch=0, now_ms=NOW_MS) is None
