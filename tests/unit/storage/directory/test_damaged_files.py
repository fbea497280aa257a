"""Files that have no checksum are damaged while a broker is stopped: nothing wrong in them is believed."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import msgspec
import pytest

from lowtide.protocol.erasure_record import ErasureRecord
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.records import iterate_batches
from lowtide.storage.checkpoint import CheckpointError
from lowtide.storage.log.log import Log
from lowtide.storage.log.log_erasures import LogErasures, decode_erasures
from lowtide.storage.log.log_values import AppendedBatch
from lowtide.storage.log.markers import make_erasure, make_marker
from lowtide.storage.log.retention.segment_ages import SegmentAges
from lowtide.storage.log.segments.segment_names import offset_name
from lowtide.storage.log.timestamps import search_max_timestamp, search_timestamp
from tests.unit.storage.directory.managed_logs import A0
from tests.unit.storage.directory.test_erasures import FOLDER, LARGE, batch_at, filled, found, loaded, produce
from tests.unit.storage.directory.test_holes import World

SMALL = msgspec.structs.replace(LARGE, segment_bytes=1500)


def damage(world: World, path: str, position: int, mask: int) -> None:
    byte = world.filesystem.read_bytes(path)[position]
    world.filesystem.open(path, write=True).pwritev([bytes([byte ^ mask])], position)


def restarted(world: World, config: Any) -> Log:
    world.filesystem.crash_process()
    world.start()
    return loaded(world, config)


def times(log: Log, filesystem: Any) -> list[Any]:
    """Every answer that a timestamp can get, and what retention by time goes by."""
    ages = SegmentAges(filesystem)
    return [
        [ages.largest_timestamp(segment) for segment in log.segments],
        search_max_timestamp(log),
        *(search_timestamp(log, timestamp) for timestamp in range(999, 1102)),
    ]


def test_no_bit_of_the_erasures_can_change_unseen() -> None:
    """Protects erased persons: with one bit changed, a record that is still in a file came back."""
    erasures = LogErasures()
    erasures.note(ErasureRecord(UUID(int=7), OffsetRanges.of_offsets([3, 4, 9]).ranges()), 20, 1)
    erasures.note_search(UUID(int=9))
    content = erasures.encode()
    assert decode_erasures("lowtide-erasures", content) == (erasures.known, erasures.searches)
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            decode_erasures("lowtide-erasures", bytes(changed))
    for size in range(len(content)):
        with pytest.raises(CheckpointError):
            decode_erasures("lowtide-erasures", content[:size])


@pytest.mark.parametrize("base", [0, 25, 50])
@pytest.mark.parametrize("mask", [1, 8, 64])
def test_a_damaged_time_index_changes_no_answer(base: int, mask: int) -> None:
    """Protects searches by time, and records that retention by time would have deleted early."""
    world = World()
    expected = times(filled(world, config=SMALL), world.filesystem)
    world.manager.close()
    path = f"{FOLDER}/{offset_name(base)}.timeindex"
    content = world.filesystem.read_bytes(path)
    for position in range(len(content)):
        world.filesystem.write_bytes(path, content)
        damage(world, path, position, mask)
        assert times(restarted(world, SMALL), world.filesystem) == expected, position
        world.manager.close()


def test_an_entry_for_a_later_batch_hides_no_record_from_an_erasure() -> None:
    """Protects erased persons: the records between the right place and the wrong one stayed in the file."""
    world = World()
    log = filled(world)
    batch_bytes = log.segments.active.size // 20
    log.roll(1)
    produce(log, 1)
    world.manager.close()
    path = f"{FOLDER}/{offset_name(0)}.index"
    entries = list(struct.iter_unpack(">ii", world.filesystem.read_bytes(path)))
    offset, position = entries[2]
    entries[2] = (offset, position + batch_bytes)
    world.filesystem.write_bytes(path, b"".join(struct.pack(">ii", *entry) for entry in entries))
    log = restarted(world, LARGE)
    record = ErasureRecord(UUID(int=1), OffsetRanges.of_offsets([offset]).ranges())
    log.append_as_leader(make_erasure(record, 1), leader_epoch=3, now_ms=1)
    log.advance_high_watermark(log.log_end_offset)
    for _ in range(8):
        world.tick(1000)
    assert log.erasures.is_done(log.log_end_offset)
    assert found(world, 105) == set(range(105)) - {offset}
    assert A0 in world.manager.logs


def aborted_everywhere(log: Log) -> list[Any]:
    """The aborted transactions of reads from each offset."""
    answers = []
    for offset in range(log.log_start_offset, log.log_end_offset):
        part = log.read(offset, 1 << 20, end_offset=log.log_end_offset).slice
        assert part is not None
        aborted = log.aborted_transactions(part, offset, log.log_end_offset)
        answers.append([(each.producer_id, each.first_offset, each.last_offset) for each in aborted])
    return answers


def test_a_damaged_index_of_aborted_transactions_changes_no_answer() -> None:
    """Protects consumers of committed records: they got the aborted ones."""
    world = World()
    log = filled(world, 0)
    for number in range(4):
        for producer_id, sequence in ((5, 5 * number), (60 + number, 0)):
            options = {"producer_id": producer_id, "producer_epoch": 0, "is_transactional": True}
            begun = batch_at(log.log_end_offset, base_sequence=sequence, **options)
            assert isinstance(log.append_as_leader(begun, leader_epoch=3, now_ms=1), AppendedBatch)
        for producer_id, is_commit in ((5, number == 1), (60 + number, number == 2)):
            marker = make_marker(
                producer_id, 0, is_commit=is_commit, coordinator_epoch=0, epoch_is_bumped=False, now_ms=1
            )
            log.append_as_leader(marker, leader_epoch=3, now_ms=1)
    log.roll(1)
    produce(log, 1)
    expected = aborted_everywhere(log)
    assert len(expected[0]) == 6
    world.manager.close()
    path = f"{FOLDER}/{offset_name(0)}.txnindex"
    content = world.filesystem.read_bytes(path)
    for bit in range(0, 8 * len(content), 3):
        world.filesystem.write_bytes(path, content)
        damage(world, path, bit // 8, 1 << bit % 8)
        assert aborted_everywhere(restarted(world, LARGE)) == expected, bit
        world.manager.close()


def with_three_epochs(world: World) -> list[tuple[int, int]]:
    """Fills and closes a log. Returns its leader epochs."""
    log = filled(world, 4, config=SMALL)
    for epoch in (5, 17):
        for _ in range(4):
            log.append_as_leader(batch_at(log.log_end_offset), leader_epoch=epoch, now_ms=1)
        log.advance_high_watermark(log.log_end_offset)
    world.manager.close()
    assert log.leader_epochs.entries() == [(3, 0), (5, 20), (17, 40)]
    return log.leader_epochs.entries()


def test_damaged_leader_epochs_are_built_again() -> None:
    """Protects what replicas keep after an election: they cut their logs where the leader's epochs say so."""
    world = World()
    expected = with_three_epochs(world)
    path = f"{FOLDER}/leader-epoch-checkpoint"
    content = world.filesystem.read_bytes(path)
    for bit in range(8 * len(content)):
        world.filesystem.write_bytes(path, content)
        damage(world, path, bit // 8, 1 << bit % 8)
        assert restarted(world, SMALL).leader_epochs.entries() == expected, bit
        world.manager.close()


@pytest.mark.parametrize("base", [0, 20, 40])
@pytest.mark.parametrize("bit", range(0, 32, 3))
def test_a_damaged_epoch_of_a_batch_changes_no_leader_epoch(base: int, bit: int) -> None:
    world = World()
    expected = with_three_epochs(world)
    segment = max(name for name in world.names(FOLDER) if name.endswith(".log") and int(name[:20]) <= base)
    content = world.filesystem.read_bytes(f"{FOLDER}/{segment}")
    position = next(position for position, header in iterate_batches(content) if header.base_offset == base)
    damage(world, f"{FOLDER}/{segment}", position + 12 + bit // 8, 1 << bit % 8)
    assert restarted(world, SMALL).leader_epochs.entries() == expected


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_log_that_lost_its_end_is_not_served(kept: int) -> None:
    """Protects consumers: other records would have got the offsets of those that are missing."""
    world = World()
    batch_bytes = filled(world, 4).segments.active.size // 4
    world.manager.close()
    world.filesystem.crash_process()
    world.filesystem.open(f"{FOLDER}/{offset_name(0)}.log", write=True).truncate(kept * batch_bytes)
    world.start()
    assert A0 in world.manager.damaged
    assert "ended at offset 20" in str(world.manager.damaged[A0])


def test_a_last_batch_with_another_offset_is_not_served() -> None:
    world = World()
    batch_bytes = filled(world, 4).segments.active.size // 4
    world.manager.close()
    world.filesystem.crash_process()
    damage(world, f"{FOLDER}/{offset_name(0)}.log", 3 * batch_bytes + 6, 1)
    world.start()
    assert A0 in world.manager.damaged


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", f"{A0}/{offset_name(20)}.snapshot"])
def test_one_wrong_witness_of_the_end_costs_no_log(name: str) -> None:
    world = World()
    filled(world, 4)
    world.manager.close()
    world.filesystem.crash_process()
    path = f"/one/{name}"
    if name.endswith("snapshot"):
        world.filesystem.rename(path, path.replace("20.snap", "24.snap"))
    else:
        damage(world, path, len(world.filesystem.read_bytes(path)) - 2, 1)
    world.start()
    assert world.manager.logs[A0].log_end_offset == 20
