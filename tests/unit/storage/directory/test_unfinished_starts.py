"""Logs without a topic id: a start loads them once it has the metadata; it may end before, or find no space."""

from __future__ import annotations

import pytest

from lowtide.storage.checkpoint import CLEAN_SHUTDOWN_MARKER, PARTITION_METADATA
from lowtide.storage.errors import StorageError

from .managed_logs import A0, ONE, World, append


def test_a_log_that_was_never_loaded_has_not_been_stopped_cleanly() -> None:
    """A power cut removed topic id and last batch; the next start was refused before it had the metadata."""
    world = World()
    append(world.create(A0)[0])
    world.filesystem.crash_process()
    world.filesystem.unlink(f"{ONE}/a-0/{PARTITION_METADATA}")
    segment = f"{ONE}/a-0/00000000000000000000.log"
    world.filesystem.write_bytes(segment, world.filesystem.read_bytes(segment) + b"torn" * 40)
    world.start()
    world.manager.close()
    world.start()
    (log,) = world.create(A0)
    assert log.log_end_offset == 5
    append(log)
    world.manager.close()
    assert world.filesystem.exists(f"{ONE}/{CLEAN_SHUTDOWN_MARKER}"), "now it has"


def test_a_full_disk_under_a_log_that_is_being_recovered_leaves_it_for_another_time() -> None:
    """Its topic id is lost and comes from the metadata; its torn end is cut, and the cut must be synced."""
    world = World()
    append(world.create(A0)[0])
    world.filesystem.crash_process()
    world.filesystem.unlink(f"{ONE}/a-0/{PARTITION_METADATA}")
    segment = f"{ONE}/a-0/00000000000000000000.log"
    world.filesystem.write_bytes(segment, world.filesystem.read_bytes(segment) + b"torn" * 40)
    world.start()
    world.filesystem.capacity_bytes = 0
    for _ in range(2):
        with pytest.raises(StorageError, match="No space left"):
            world.create(A0)
        assert world.manager.logs == {}
    world.filesystem.capacity_bytes = None
    (log,) = world.create(A0)
    assert log.log_end_offset == 5
