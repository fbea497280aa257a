"""A run of batches is appended as the same batches one by one are, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.errors import ErrorCode
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import AppendedBatch, Log, LogConfig

from .test_log import NOW_MS, append, batch, content_at, new_log


def state_of(log: Log) -> tuple[Any, ...]:
    segment = log.segments[-1]
    return (
        log.describe(),
        len(log.segments),
        segment.size,
        segment.max_timestamp,
        segment.max_timestamp_offset,
        [index.encode() for index in segment.indexes],
        repr(log.producer_state.producers),
        log.leader_epochs.latest,
        content_at(log, 0) if log.log_end_offset else b"",
    )


def batches_of(timestamps: list[int], producer: tuple[int, int] | None) -> list[Any]:
    made: list[Any] = []
    for number, timestamp in enumerate(timestamps):
        known = (
            {}
            if producer is None
            else {"producer_id": 7, "producer_epoch": producer[0], "base_sequence": producer[1] + number}
        )
        made.append(batch(timestamp, **known))
    return made


@given(
    before=st.integers(0, 3),
    timestamps=st.lists(st.integers(NOW_MS - 3000, NOW_MS), min_size=2, max_size=6),
    producer=st.none() | st.tuples(st.integers(0, 2), st.integers(0, 3)),
    known=st.none() | st.tuples(st.integers(0, 2), st.integers(0, 3)),
    segment_bytes=st.sampled_from([300, 500, 700, 1 << 20]),
    index_bytes=st.sampled_from([36, 60, 1 << 20]),
    segment_ms=st.sampled_from([1000, 1 << 40]),
    epoch=st.integers(0, 1),
)
def test_a_run_is_what_its_batches_are_one_by_one(
    *,
    before: int,
    timestamps: list[int],
    producer: tuple[int, int] | None,
    known: tuple[int, int] | None,
    segment_bytes: int,
    index_bytes: int,
    segment_ms: int,
    epoch: int,
) -> None:
    config = LogConfig(
        segment_bytes=segment_bytes, segment_index_bytes=index_bytes, segment_ms=segment_ms, index_interval_bytes=80
    )
    logs = [new_log(config) for _ in range(2)]
    for log in logs:
        for number in range(before):
            append(log, NOW_MS - 2000 + number)
        if known is not None:
            log.append_as_leader(
                batch(producer_id=7, producer_epoch=known[0], base_sequence=known[1]), leader_epoch=0, now_ms=NOW_MS
            )
    together, singly = logs
    batches, untouched = batches_of(timestamps, producer), state_of(together)
    size = sum(each.size_bytes for each in batches)
    base_offsets = together.append_together_as_leader(batches, size, batches[:1], leader_epoch=epoch, now_ms=NOW_MS)
    segments = len(singly.segments)
    appended = [singly.append_as_leader(each, leader_epoch=epoch, now_ms=NOW_MS) for each in batches]
    if base_offsets is None:
        assert state_of(together) == untouched
        is_usual = (
            all(isinstance(each, AppendedBatch) and not each.duplicate for each in appended)
            and len(singly.segments) == segments
        )
        assert not is_usual or not untouched[2] or segment_ms == 1000 or index_bytes < 1 << 20, (
            "this was as usual as can be"
        )
        return
    assert appended == [AppendedBatch(offset, offset, -1) for offset in base_offsets]
    assert state_of(together) == state_of(singly)


@pytest.mark.parametrize("free_bytes", [0, 1, 69, 70, 100])
def test_a_full_disk_leaves_the_log_as_it_was(free_bytes: int) -> None:
    filesystem = MemoryFileSystem()
    log = new_log(filesystem=filesystem)
    append(log)
    before, batches = state_of(log), batches_of([NOW_MS, NOW_MS], None)
    filesystem.capacity_bytes = log.size_bytes + free_bytes
    size = sum(each.size_bytes for each in batches)
    assert log.append_together_as_leader(batches, size, batches[:1], leader_epoch=0, now_ms=NOW_MS) is None
    assert state_of(log) == before
    filesystem.capacity_bytes = None
    assert log.append_together_as_leader(batches, size, batches[:1], leader_epoch=0, now_ms=NOW_MS) == (1, 2)


def test_a_failing_disk_ends_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = new_log()
    append(log)

    def fail(*_: Any) -> None:
        raise OSError(5, "no disk")

    monkeypatch.setattr(type(log.segments[-1]), "write", fail)
    batches = batches_of([NOW_MS, NOW_MS], None)
    with pytest.raises(StorageError):
        log.append_together_as_leader(batches, 1, batches[:1], leader_epoch=0, now_ms=NOW_MS)
    assert log.offline
    assert log.append_together_as_leader(batches, 1, batches[:1], leader_epoch=0, now_ms=NOW_MS) is None
    assert log.append_as_leader(batches[0], leader_epoch=0, now_ms=NOW_MS) == ErrorCode.KAFKA_STORAGE_ERROR
