"""A full disk: erasing waits for room, says what it lacks, and continues by itself."""

from __future__ import annotations

import errno
import re

from lowtide.protocol.types import TopicPartition
from lowtide.storage.directory.log_settings import ErasingListener

from .managed_logs import A0, ONE
from .test_erasures import check, erase, filled, found
from .test_holes import World


def test_a_full_disk_is_no_failure_and_is_reported_once_a_minute() -> None:
    world = World()
    log = filled(world)
    reports: list[tuple[TopicPartition, str, int]] = []
    world.manager.listeners.erasing.append(
        ErasingListener(print, lambda log, short, logs: reports.append((log.topic_partition, short.sentence, logs)))
    )
    disk = world.filesystem
    disk.capacity_bytes = 1 << 30
    disk.capacity_bytes -= disk.free_bytes("/")
    assert erase(world, log, 52, rounds=5) == []
    usage = world.manager.directories.usage(log.parent_directory)
    assert (usage.to_erase.logs, usage.to_erase.requests, usage.to_erase.without_room) == (1, 1, 1)
    assert usage.to_erase.oldest_ms >= 400
    place = log.segments[0].find(52)
    assert place is not None
    needed = log.segments[0].size - place.position
    reason = f"no room in {ONE}: needs {needed} bytes, has {disk.free_bytes(ONE)}"
    assert reports == [(A0, reason, 1)]
    assert world.manager.directories.erasure_waits(log).why(log, 0) == reason
    for minutes in (2, 2, 2, 3):
        for _ in range(20):
            world.tick(1000)
        assert len(reports) <= minutes
    assert len(reports) == 2
    disk.capacity_bytes += 1 << 20
    for _ in range(15):
        world.tick(100)
    usage = world.manager.directories.usage(log.parent_directory)
    assert (usage.to_erase.logs, usage.to_erase.without_room, usage.to_erase.oldest_ms) == (0, 0, 0)
    assert found(world, 52) == set()
    check(world, log, 52, 100)


def test_a_write_that_finds_the_disk_full_says_what_it_needs() -> None:
    """A quota refuses what the volume's figures allow."""
    world = World()
    log = filled(world)
    world.filesystem.fail_next("write", errno.EDQUOT, 100, path_contains=".cleaned")
    assert erase(world, log, 52, rounds=5) == []
    said = world.manager.directories.erasure_waits(log).why(log, 0)
    assert re.fullmatch(rf"no room in {ONE} \(.+\): needs \d+ bytes, has \d+", said), said
    assert world.failed == []
