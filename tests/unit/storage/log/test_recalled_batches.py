"""After a crash a producer's last five batches are still duplicates, wherever snapshots were taken.

A snapshot has the last batch of each producer. It is written at each roll, and after a recovery.
"""

from __future__ import annotations

import pytest

from lowtide.protocol.errors import ErrorCode
from lowtide.storage.log.log import Log, LogConfig
from lowtide.storage.log.producers.producer_snapshot import REMEMBERED_BATCHES
from lowtide.storage.log.producers.producer_state import DuplicateBatch
from lowtide.storage.log.truncation import LogTruncation
from tests.each import each

from .test_loader import CONFIG, append, load, log_with

PRODUCER, EPOCH, RECORDS = 7, 0, 2
"""Of the batches of `log_with`."""

ONE_SEGMENT = LogConfig(segment_bytes=1 << 20, index_interval_bytes=100)


def known(log: Log, *, end: int) -> list[int]:
    """The batches below the `end`th that are duplicates, each at its place; all others are refused."""
    found = []
    for number in range(end):
        verdict = log.producer_state.check(PRODUCER, EPOCH, number * RECORDS, RECORDS)
        if isinstance(verdict, DuplicateBatch):
            assert (verdict.base_offset, verdict.last_offset) == (number * RECORDS, number * RECORDS + 1)
            found.append(number)
        else:
            assert verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    return found


@pytest.mark.parametrize("config", [CONFIG, ONE_SEGMENT], ids=["rolled", "one segment"])
@pytest.mark.parametrize("crashes", [1, 2, 3])
@each("batches", range(1, 12))
def test_five_batches_are_known_after_so_many_crashes(config: LogConfig, batches: int, crashes: int) -> None:
    filesystem = log_with(batches, clean=False, config=config)
    for _ in range(crashes):
        log, _ = load(filesystem, config=config)
        filesystem.crash_process()
    log, _ = load(filesystem, config=config)
    assert known(log, end=batches) == list(range(max(batches - REMEMBERED_BATCHES, 0), batches))
    append(log, RECORDS, 20, producer_id=PRODUCER, producer_epoch=EPOCH, base_sequence=batches * RECORDS)
    assert known(log, end=batches + 1)[-1] == batches


def test_they_are_known_behind_many_small_segments_of_others() -> None:
    """Protects a producer that waits for followers while others, with acks=1, do not."""
    filesystem = log_with(6, clean=False)
    log, _ = load(filesystem)
    for _ in range(40):
        append(log, 2, 120)
    assert len(log.segments) > 40
    filesystem.crash_process()
    log, _ = load(filesystem)
    assert known(log, end=6) == [1, 2, 3, 4, 5]


def test_they_are_known_after_a_truncation() -> None:
    filesystem = log_with(10, clean=False, config=ONE_SEGMENT)
    log, _ = load(filesystem, config=ONE_SEGMENT)
    LogTruncation(log).truncate_to(14, now_ms=1)
    assert known(log, end=7) == [2, 3, 4, 5, 6]


def test_batches_of_an_earlier_epoch_or_behind_a_gap_are_not_taken_for_those_of_this_one() -> None:
    filesystem = log_with(3, clean=False, config=ONE_SEGMENT)
    log, _ = load(filesystem, config=ONE_SEGMENT)
    append(log, RECORDS, 20, producer_id=PRODUCER, producer_epoch=EPOCH + 1, base_sequence=0)
    filesystem.crash_process()
    for _ in range(2):
        log, _ = load(filesystem, config=ONE_SEGMENT)
    entry = log.producer_state.producers[PRODUCER]
    assert (entry.producer_epoch, [batch.base_offset for batch in entry.batches]) == (EPOCH + 1, [6])
