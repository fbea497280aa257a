"""The share coordinator of one broker: its topic, leaderships, the part of the log it needs, and deleted topics."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.coordinator.share_state.share_coordinator import SHARE_TOPIC, coordinator_key, is_share_key
from lowtide.broker.coordinator.share_state.share_settings import SHARE_GROUPS_KEY, share_groups_enabled
from lowtide.metadata.image import ImageDelta
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_state_records import SharePlace

from .coordinator_world import HERE, NONE, PLACE, THERE, T, World, topic

ID_TEXT = "AAAAAAAAAAAAAAAAAAAAAA"


# ---------------------------------------------------------------------- keys, configuration
@pytest.mark.parametrize("value", ["true", "false"])
def test_share_groups_are_served_where_that_is_configured(value: str) -> None:
    assert share_groups_enabled(load_config(settings={SHARE_GROUPS_KEY: value}).values) == (value == "true")


@pytest.mark.parametrize("key", [coordinator_key(PLACE), f"g:{ID_TEXT}:0", f"a:b::{ID_TEXT}:17", f" :{ID_TEXT}:0"])
def test_a_share_key_has_a_group_a_topic_id_and_a_partition(key: str) -> None:
    assert is_share_key(key)


@pytest.mark.parametrize("key", [
    "", "g", f"g:{ID_TEXT}", f":{ID_TEXT}:0", f"{ID_TEXT}:0", "g:t:0", "g::0", f"g:{ID_TEXT}:", f"g:{ID_TEXT}:x",
    f"g:{ID_TEXT}:-1", f"g:{ID_TEXT}:٣", f"g:{ID_TEXT}:²", f"g:0:{ID_TEXT}",
])  # fmt: skip
def test_other_texts_are_no_share_keys(key: str) -> None:
    assert not is_share_key(key)


@pytest.mark.parametrize(("is_alone", "given", "replicas"), [(True, {}, 1), (True, {"factor": "3"}, 3), (False, {}, 3)])
def test_only_a_broker_that_stays_alone_makes_the_topic_with_fewer_replicas_than_the_default(
    *, is_alone: bool, given: dict[str, str], replicas: int
) -> None:
    """In a cluster, the other brokers may still register. A configured factor always applies."""
    world = World(
        is_alone=is_alone, **{f"share_coordinator_state_topic_replication_{key}": value for key, value in given.items()}
    )
    wanted, configs = world.make_topic(world.coordinator.topic)
    assert (wanted.name, wanted.replication_factor) == (SHARE_TOPIC, replicas)
    assert configs["min.insync.replicas"] == ("1" if replicas == 1 else "2"), "the replicas are enough to write to it"


# ---------------------------------------------------------------------- whose turn it is
def test_what_is_led_here_is_loaded_with_a_tick() -> None:
    world = World(HERE, THERE, HERE)
    world.coordinator.on_tick()
    assert sorted(world.coordinator._runtime.shards) == [0, 2]


def test_nothing_is_coordinated_without_the_topic() -> None:
    """Its partitions may be here for a moment longer."""
    world = World(HERE)
    world.coordinator.on_tick()
    shard = world.shard()
    world.set_topics()
    world.coordinator.on_tick()
    assert shard.unloaded


def test_nothing_is_coordinated_by_a_broker_that_stops() -> None:
    world = World(HERE)
    shard = world.shard()
    world.coordinator.close()
    assert shard.unloaded
    assert world.coordinator.find_place(PLACE) == ErrorCode.NOT_COORDINATOR


# ---------------------------------------------------------------------- what the states ask for
def test_only_partitions_that_there_are_have_a_state() -> None:
    world = World(HERE)
    world.set_topics(topic("t", HERE, HERE), topic(SHARE_TOPIC, HERE))
    assert [world.coordinator.has_partition(T, number) for number in (-1, 0, 1, 2)] == [False, True, True, False]
    assert not world.coordinator.has_partition(bytes(16), 0)
    assert world.initialize() == NONE
    assert world.initialize(place=SharePlace("g", T, 2)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(("start_offset", "is_cut"), [(2, False), (3, True), (9, True), (10, False)])
def test_the_log_is_cut_forward_within_what_is_committed(start_offset: int, *, is_cut: bool) -> None:
    world = World(HERE, HERE)
    shards = [world.initialize_in(number) for number in (0, 1)]
    for number in (0, 1):
        log = world.partition(number).log
        log.log_start_pending, log.high_watermark, log.log_end_offset = 2, 9, 12
    world.coordinator.prune(shards[1].state, start_offset)
    assert world.cut == ([(log, start_offset)] if is_cut else [])


def test_the_log_of_another_leadership_is_not_cut() -> None:
    world = World(HERE)
    shard = world.initialize_in(0)
    world.partition().led_since += 1
    world.coordinator.prune(shard.state, 1)
    assert world.cut == []


# ---------------------------------------------------------------------- deleted topics
def delete(world: World, *names: str) -> None:
    world.coordinator.on_image(ImageDelta(topics_deleted=tuple(topic(name, HERE) for name in names)))
    world.run()


def test_states_in_a_deleted_topic_are_forgotten_in_all_partitions() -> None:
    world = World(HERE, HERE, HERE)
    shards = [world.initialize_in(number) for number in range(3)]
    world.partition(0).is_leader = False
    delete(world, "u", "t")
    assert [shard.state.count for shard in shards[1:]] == [0, 0]
    assert len(world.appended) == 3 + 2


def test_states_in_other_topics_stay() -> None:
    world = World(HERE)
    shard = world.initialize_in(0)
    delete(world)
    delete(world, "u")
    delete(world, SHARE_TOPIC)
    assert shard.state.count == 1
    assert len(world.appended) == 1


def test_nothing_is_loaded_for_a_deleted_topic() -> None:
    world = World(HERE)
    delete(world, "t")
    assert world.coordinator._runtime.shards == {}
    assert not world.later
