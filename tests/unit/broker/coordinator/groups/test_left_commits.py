"""What the quick path of OffsetCommit leaves to its handler, and the timers that a commit sets."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.groups.small_commit import small_commit
from lowtide.protocol import native
from lowtide.protocol.errors import ErrorCode

from .coordinator_world import GROUP, HERE, World

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the compiled form wasn't built")

ANSWER = b"answer"


def commit(world: World) -> Any:
    path = small_commit(world.coordinator)
    assert path is not None
    return path.handle((GROUP, -1, "", None, 9, "t", 0, ((0, 5, -1),), ANSWER), memoryview(b""), None)


def test_a_coordinator_that_is_not_ready_is_left() -> None:
    world = World(HERE)
    assert commit(world) == ANSWER
    world.partitions.clear()
    assert commit(world) is None


def test_a_deadline_that_a_commit_sets_has_a_timer() -> None:
    world = World(HERE)
    shard = world.shard()
    world.later.clear()
    admit = shard.state.admit_commit

    def admit_commit(request: Any, version: int, effects: Any) -> ErrorCode:
        shard.state.timers.schedule(("heartbeat", GROUP, "m"), effects.now_ms + 40)
        return admit(request, version, effects)

    shard.state.admit_commit = admit_commit  # type: ignore[method-assign]
    assert commit(world) == ANSWER
    assert [delay_s for delay_s, _, _ in world.later] == [0.04]
