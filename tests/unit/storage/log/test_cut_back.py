"""What is cut from a segment's end doesn't come back by a power cut before a later, flushed segment (R1)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log import Log, LogConfig

from .test_loader import carry_out, load, offsets_of
from .test_log import NOW_MS, append, batch, new_log

CONFIG = LogConfig(segment_bytes=1_000, index_interval_bytes=100)

SEEDS = 80
"""A write that was kept, and the cut behind it that was lost, are one case of nine."""


def two_records(seed: int, config: LogConfig = CONFIG) -> tuple[MemoryFileSystem, Log]:
    """A log of two records, whose folders have durable names."""
    filesystem = MemoryFileSystem(Random(seed))
    log = new_log(config, filesystem=filesystem)
    filesystem.sync_directory("/")
    append(log)
    append(log)
    return filesystem, log


def flush(filesystem: MemoryFileSystem, log: Log) -> None:
    """Makes all of it durable."""
    end = log.log_end_offset
    carry_out(filesystem, LogDurability(log).flush_barrier())
    LogDurability(log).on_flushed(end)
    assert log.recovery_point == end


def as_leader(log: Log) -> object:
    return log.append_as_leader(batch(), leader_epoch=0, now_ms=NOW_MS)


def several(log: Log) -> object:
    """Three batches in one write, of which the first may be written whole."""
    batches = [batch() for _ in range(3)]
    size = sum(each.size_bytes for each in batches)
    return log.append_together_as_leader(batches, size, batches, leader_epoch=0, now_ms=NOW_MS)


def as_follower(log: Log) -> object:
    content = bytearray()
    for number in range(3):
        content += (log.log_end_offset + number).to_bytes(8, "big") + build_batch([(NOW_MS, None, b"v", ())])[8:]
    return log.append_as_follower(memoryview(bytes(content)), now_ms=NOW_MS)


ATTEMPTS = pytest.mark.parametrize(("attempt", "attempts"), [(as_leader, 1), (several, 1), (as_follower, 2)])
"""A follower writes all at once, and then one by one."""


@ATTEMPTS
def test_a_write_for_which_there_was_no_room(attempt: Callable[[Log], object], attempts: int) -> None:
    """It is cut back, but nothing is flushed of its segment after that; a segment that begins behind it is."""
    for seed in range(SEEDS):
        filesystem, log = two_records(seed)
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


@ATTEMPTS
def test_a_clean_stop_after_a_write_for_which_there_was_no_room(
    attempt: Callable[[Log], object], attempts: int
) -> None:
    """The next start reads no more than the indexes, and finds the end where it was."""
    for seed in range(SEEDS):
        filesystem, log = two_records(seed)
        carry_out(filesystem, LogDurability(log).close())
        log, _ = load(filesystem, recovery_point=2, clean=True)
        filesystem.fail_next("write", errno.ENOSPC, count=attempts, path_contains=".log")
        attempt(log)
        assert log.log_end_offset == 2
        carry_out(filesystem, LogDurability(log).close())
        filesystem.power_cut(Random(seed))
        recovered, report = load(filesystem, recovery_point=2, clean=True)
        assert (recovered.log_end_offset, offsets_of(recovered)) == (2, [0, 1]), (seed, report)


def test_what_was_preallocated() -> None:
    """It is cut off when the next segment begins."""
    for seed in range(SEEDS):
        filesystem, log = two_records(seed, LogConfig(segment_bytes=1_000, index_interval_bytes=100, preallocate=True))
        flush(filesystem, log)
        log.roll(NOW_MS)
        append(log)
        flush(filesystem, log)
        filesystem.power_cut(Random(seed))
        recovered, report = load(filesystem, recovery_point=0)
        assert offsets_of(recovered) == [0, 1, 2], (seed, report)
