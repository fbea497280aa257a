"""Leader epochs after an unclean stop: batches don't know all of a compacted log's, and know better than a damaged
file.
"""

from __future__ import annotations

import struct

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.types import LeaderEpoch, Offset
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.log.durability import LogDurability
from lowtide.storage.log.log_files import LogPlace
from lowtide.storage.log.opening.loader import create_log

from .test_loader import CONFIG, FOLDER, IDENTITY, NOW_MS, carry_out, load

Entries = list[tuple[LeaderEpoch, Offset]]


def stored(base_offset: Offset, leader_epoch: LeaderEpoch, records: int = 1) -> bytes:
    """A batch as a follower takes it over."""
    content = build_batch([(NOW_MS, None, b"v", ())] * records)
    return struct.pack(">qii", base_offset, len(content) - 12, leader_epoch) + content[16:]


def folder_with(batches: list[bytes], entries: Entries) -> MemoryFileSystem:
    """A compacted log with these batches, which had others between them, and a file with these entries."""
    filesystem = MemoryFileSystem()
    log = create_log(LogPlace(filesystem=filesystem, directory=FOLDER, config=CONFIG, **IDENTITY), now_ms=NOW_MS)
    log.append_as_follower(memoryview(b"".join(batches)), now_ms=NOW_MS)
    carry_out(filesystem, LogDurability(log).flush_barrier())
    lines = "".join(f"{epoch} {start}\n" for epoch, start in entries)
    filesystem.write_bytes(f"{FOLDER}/leader-epoch-checkpoint", f"0\n{len(entries)}\n{lines}".encode())
    filesystem.crash_process()
    return filesystem


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(0, 0), (1, 67), (3, 71)], [(0, 0), (1, 67), (3, 71)]),  # All of 67 to 116 was compacted away.
        ([(0, 0), (1, 67)], [(0, 0), (1, 67), (3, 117)]),  # The file is older than the last epoch.
        ([(0, 0), (5, 71)], [(0, 0), (3, 117)]),  # The batches know better.
        ([(0, 0), (3, 71), (9, 400)], [(0, 0), (3, 71)]),  # Beyond the log end.
        ([(2, 0)], [(0, 0), (3, 117)]),
        ([], [(0, 0), (3, 117)]),
    ],
)
def test_an_epoch_whose_batches_are_gone_stays(entries: Entries, expected: Entries) -> None:
    """Otherwise a replica with epoch 0 from 67 on would not be truncated: only the file knows where epoch 0 ended."""
    batches = [stored(0, 0), stored(35, 0, 2), stored(117, 3, 3), stored(130, 3)]
    log, report = load(folder_with(batches, entries), recovery_point=0, clean=False)
    assert report.segments_checked
    assert log.leader_epochs.entries() == expected
    assert log.log_end_offset == 131


def test_a_batch_in_which_the_log_starts_contradicts_nothing() -> None:
    """The first epoch begins at the log start, in the middle of a batch; those before it say nothing any more."""
    batches = [stored(0, 0, 4), stored(10, 1, 10), stored(40, 4)]
    entries = [(1, 15), (2, 22), (4, 30)]
    log, _ = load(folder_with(batches, entries), recovery_point=0, log_start_offset=15, clean=False)
    assert log.leader_epochs.entries() == entries
