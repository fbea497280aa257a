"""What is cut from the end of a segment doesn't come back by a power cut in front of a later segment that was flushed (R1, S2)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.log.loader import create_log
from lowtide.storage.log.log import Log, LogConfig
from lowtide.storage.log.log_place import LogPlace
from lowtide.storage.log.validation_rules import ValidationRules
from lowtide.storage.log.validator import ValidatedBatch, validate_produce

from .test_loader import FOLDER, IDENTITY, NOW_MS, append, carry_out, load, offsets_of

SEEDS = 80
"""A write that was kept, and the cut behind it that was lost, are one case of nine."""


def new_log(seed: int, config: LogConfig) -> tuple[MemoryFileSystem, Log]:
    """An empty log, on the disk with its folders."""
    filesystem = MemoryFileSystem(Random(seed))
    log = create_log(LogPlace(filesystem=filesystem, directory=FOLDER, config=config, **IDENTITY), now_ms=NOW_MS)
    filesystem.sync_directory("/")
    return filesystem, log


def flush(filesystem: MemoryFileSystem, log: Log) -> None:
    """Makes all of it durable."""
    end = log.log_end_offset
    carry_out(filesystem, log.flush_barrier())
    log.on_flushed(end)
    assert log.recovery_point == end


def as_leader(log: Log) -> object:
    batch = validate_produce(memoryview(build_batch([(NOW_MS, None, b"v" * 100, ())])), ValidationRules(), NOW_MS)
    assert isinstance(batch, ValidatedBatch)
    return log.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)


def several(log: Log) -> object:
    """Three batches in one write, of which the first may be written whole."""
    batches = []
    for _ in range(3):
        batch = validate_produce(memoryview(build_batch([(NOW_MS, None, b"v" * 60, ())])), ValidationRules(), NOW_MS)
        assert isinstance(batch, ValidatedBatch)
        batches.append(batch)
    size = sum(batch.size_bytes for batch in batches)
    return log.append_together_as_leader(batches, size, batches, leader_epoch=0, now_ms=NOW_MS)


def as_follower(log: Log) -> object:
    content = bytearray()
    for number in range(3):
        batch = bytearray(build_batch([(NOW_MS, None, b"v" * 60, ())]))
        batch[:8] = (log.log_end_offset + number).to_bytes(8, "big")
        content += batch
    return log.append_as_follower(memoryview(bytes(content)), now_ms=NOW_MS)


@pytest.mark.parametrize(("attempt", "attempts"), [(as_leader, 1), (several, 1), (as_follower, 2)])
def test_a_write_for_which_there_was_no_room(attempt: Callable[[Log], object], attempts: int) -> None:
    """It is cut back, but nothing is flushed of its segment after that; a segment that begins behind it is.

    A follower tries all at once, and then one by one.
    """
    for seed in range(SEEDS):
        filesystem, log = new_log(seed, LogConfig(segment_bytes=1_000, index_interval_bytes=100))
        append(log)
        append(log)
        flush(filesystem, log)
        filesystem.fail_next("write", errno.ENOSPC, count=attempts, path_contains=".log")
        attempt(log)
        assert log.log_end_offset == 2
        log.roll(NOW_MS)
        append(log)
        flush(filesystem, log)
        filesystem.power_cut(Random(seed))
        recovered, report = load(filesystem, recovery_point=0)
        assert offsets_of(recovered) == [0, 1, 2], (seed, report)


@pytest.mark.parametrize(("attempt", "attempts"), [(as_leader, 1), (several, 1), (as_follower, 2)])
def test_a_clean_stop_after_a_write_for_which_there_was_no_room(attempt: Callable[[Log], object], attempts: int) -> None:
    """The next start reads no more than the indexes, and finds the end where it was."""
    for seed in range(SEEDS):
        filesystem, log = new_log(seed, LogConfig(segment_bytes=1_000, index_interval_bytes=100))
        append(log)
        append(log)
        carry_out(filesystem, log.close())
        log, _ = load(filesystem, recovery_point=2, clean=True)
        filesystem.fail_next("write", errno.ENOSPC, count=attempts, path_contains=".log")
        attempt(log)
        assert log.log_end_offset == 2
        barrier = log.close()
        if barrier is not None:
            carry_out(filesystem, barrier)
        filesystem.power_cut(Random(seed))
        recovered, report = load(filesystem, recovery_point=2, clean=True)
        assert (recovered.log_end_offset, offsets_of(recovered)) == (2, [0, 1]), (seed, report)


def test_what_was_preallocated() -> None:
    """It is cut off when the next segment begins."""
    for seed in range(SEEDS):
        filesystem, log = new_log(seed, LogConfig(segment_bytes=1_000, index_interval_bytes=100, preallocate=True))
        append(log)
        append(log)
        flush(filesystem, log)
        log.roll(NOW_MS)
        append(log)
        flush(filesystem, log)
        filesystem.power_cut(Random(seed))
        recovered, report = load(filesystem, recovery_point=0)
        assert offsets_of(recovered) == [0, 1, 2], (seed, report)
