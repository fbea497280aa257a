"""What a group takes while it is there, and what is left of it: clients may have ten thousands of groups begin."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from tests.own_process import Run
from tests.unit.broker.coordinator.consumer_world import ConsumerWorld

GROUPS = 200
GROUP_BYTES_MAX = 2_048
SESSION_MS = 10_000
TIMES = 5
LEFT_BYTES_MAX = 20  # less than the smallest object


class _NoLog(list[Any]):
    """Forgets what is appended: what the log takes isn't what is measured."""

    def append(self, _item: Any) -> None:
        pass


def make_world() -> ConsumerWorld:
    world = ConsumerWorld(
        GroupSettings(
            initial_rebalance_delay_ms=0,
            consumer_assignment_interval_ms=0,
            consumer_session_timeout_ms=SESSION_MS,
            retention_check_interval_ms=SESSION_MS,
        )
    )
    world.log = _NoLog()
    make_groups(world, "before", 10)
    return world


def make_groups(world: ConsumerWorld, prefix: str, count: int) -> None:
    for number in range(count):
        world.enter(f"{number:036}", group=f"{prefix}-{number}")


def bytes_of_a_group() -> float:
    world = make_world()
    gc.collect()
    tracemalloc.start()
    make_groups(world, "group", GROUPS)
    gc.collect()
    group_bytes = tracemalloc.get_traced_memory()[0] / GROUPS
    tracemalloc.stop()
    assert len(world.groups.by_id) == GROUPS + 10
    return group_bytes


def test_a_group_of_one_member_is_cheap(in_own_process: Run) -> None:
    assert in_own_process(bytes_of_a_group) <= GROUP_BYTES_MAX


def come_and_go(world: ConsumerWorld, times: int) -> int:
    """Returns the bytes that are allocated after groups have come and gone so often."""
    for _ in range(times):
        make_groups(world, "group", GROUPS)
        world.pass_time(3 * SESSION_MS)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def bytes_left_of_a_group() -> float:
    """The growth from the first time to the ninth: dict tables keep their largest size."""
    world = make_world()
    world.pass_time(3 * SESSION_MS)
    tracemalloc.start()
    once = come_and_go(world, 1)
    growth_bytes = come_and_go(world, TIMES) - once
    tracemalloc.stop()
    assert not world.groups.by_id
    assert not world.groups.memory.held_bytes
    return growth_bytes / (TIMES * GROUPS)


@pytest.mark.slow
def test_groups_that_have_expired_leave_nothing(in_own_process: Run) -> None:
    assert in_own_process(bytes_left_of_a_group) < LEFT_BYTES_MAX
