"""Holes that are being made while a log leaves."""

from __future__ import annotations

import pytest

from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.segments.hole import decode_hole
from lowtide.storage.log.segments.segment_names import offset_name
from tests.unit.storage.directory.managed_logs import A0, ONE
from tests.unit.storage.directory.test_holes import DELETED, LARGE, World, filled, produce, raw, settle

OTHER = TopicPartition("a", 1)


def test_a_log_that_has_left_is_no_disk_failure_and_others_have_their_holes() -> None:
    """Its folder was to be synced, for the snapshot of its producers. At any completion."""
    for steps in range(10):
        world = World()
        log = filled(world)
        other = world.manager.create_log(OTHER, b"topic-a-16-bytes", LARGE)
        for each in (log, other):
            produce(each, DELETED, 10, producer_id=7, producer_epoch=0, base_sequence=0)
        world.manager.flush(log)
        world.manager.flush(other)
        world.delete_to((A0, 50), (OTHER, 50))
        world.run()
        world.begin_round()
        committer = world.committers[ONE]
        for _ in range(steps):
            if committer.waiting:
                committer.step()
        was_busy = bool(committer.waiting)
        world.manager.delete_logs([A0], lambda _error: None)
        while world.worker.waiting:
            world.worker.step()
        settle(world)
        assert world.failed == [], steps
        assert decode_hole(raw(world, f"{ONE}/{OTHER}/{offset_name(0)}.log"), 0) is not None
        if not was_busy:
            break
    else:
        pytest.fail("the round never ended")
