"""The one timer of all coordinators of a topic, and what is due."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.runtime.shard import Shard
from tests.unit.broker.coordinator.runtime.runtime_world import State, World, partition_of, pending


@pytest.fixture
def world() -> World:
    return World()


def schedule(world: World, shard: Shard[State], key: str, deadline_ms: int) -> None:
    shard.state.timers.schedule(key, deadline_ms)
    world.runtime._set_timer(shard)


def delay_ms(world: World) -> int:
    handle = world.timer()
    assert handle is not None
    return round(handle.delay_s * 1_000_000) // 1_000 if handle.delay_s else 0


def test_there_is_one_timer_for_the_earliest_deadline_of_all_states(world: World) -> None:
    first, second = world.shard(0), world.shard(1)
    schedule(world, first, "a", 5_100)
    schedule(world, second, "b", 3_100)
    assert delay_ms(world) == 3_000
    count = len(world.handles)
    schedule(world, first, "c", 4_100)
    schedule(world, first, "d", 3_100)
    assert (delay_ms(world), len(world.handles)) == (3_000, count), "it is set before these"
    assert not first.state.timers.has_sooner
    world.fire(3_100)
    assert (first.state.events[1:], second.state.events[1:]) == ([("d", 3_100)], [("b", 3_100)])
    assert delay_ms(world) == 1_000
    world.fire(6_000)
    assert first.state.events[2:] == [("c", 6_000), ("a", 6_000)]


def test_a_deadline_that_has_passed_is_due_at_once(world: World) -> None:
    schedule(world, world.shard(), "late", 1)
    assert delay_ms(world) == 0


def test_a_state_without_deadlines_sets_no_timer(world: World) -> None:
    world.shard().state.timers.cancel("expiry")
    world.fire(150)
    assert world.timer() is None


def test_what_is_due_is_carried_out(world: World) -> None:
    shard, reply = world.shard(), pending()
    shard.state.on_due = lambda _key, effects: effects.answer(reply, "late")
    schedule(world, shard, "a", 200)
    world.fire(200)
    assert reply.response == "late"


@pytest.mark.parametrize("moved", ["epoch", "another partition", "none"])
def test_no_timer_acts_in_another_leadership(world: World, moved: str) -> None:
    shard = world.shard()
    schedule(world, shard, "a", 200)
    if moved == "epoch":
        shard.partition.led_since += 1
    elif moved == "another partition":
        world.replicas.partitions[0] = partition_of(0)
    world.fire(200)
    assert shard.unloaded == (moved != "none")
    assert shard.state.events[1:] == (["unloaded"] if shard.unloaded else [("a", 200)])


def test_no_timer_acts_after_one_that_closes_the_runtime(world: World) -> None:
    shard = world.shard()
    shard.state.on_due = lambda *_: world.runtime.close()
    schedule(world, shard, "a", 200)
    schedule(world, shard, "b", 200)
    world.fire(200)
    assert shard.state.events[1:] == [("a", 200), "unloaded"]
    assert world.timer() is None


def test_no_timer_acts_before_its_state_is_loaded(world: World) -> None:
    loading, loaded = world.shard(0), world.shard(1)
    loading.loaded = False
    loading.state.timers.schedule("a", 150)
    schedule(world, loaded, "b", 200)
    world.fire(200)
    assert (loading.state.events, loaded.state.events[1:]) == (["loaded"], [("b", 200)])
