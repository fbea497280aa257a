"""The groups of one broker: leaderships, answers, refusals and their counts, and deleted topics."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lowtide.broker.coordinator.group_admission import GROUPS_GONE_MIN
from lowtide.broker.coordinator.groups import group_coordinator
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator, HeldGroups
from lowtide.broker.coordinator.groups.survey import survey
from lowtide.broker.coordinator.runtime.offsets_topic import GROUP_TOPIC
from lowtide.broker.pending import Pending
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import ImageDelta
from lowtide.metadata.records import FeaturesRecord
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_consumed_offsets import ConsumedOffsetsTopic
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartitionResult
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.markers import make_marker

from .coordinator_world import GROUP, HERE, NONE, THERE, World, topic

KEY = TopicPartition(GROUP_TOPIC, 0)
UNAVAILABLE, LOADING = ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# ---------------------------------------------------------------------- the configuration
@pytest.mark.parametrize(("is_alone", "given", "replicas"), [(True, {}, 1), (True, {"factor": "3"}, 3), (False, {}, 3)])
def test_only_a_broker_that_stays_alone_makes_the_topic_with_fewer_replicas_than_the_default(
    *, is_alone: bool, given: dict[str, str], replicas: int
) -> None:
    """In a cluster, the other brokers may still register. A configured factor always applies."""
    world = World(is_alone=is_alone, **{f"offsets_topic_replication_{key}": value for key, value in given.items()})
    wanted, _ = world.make_topic(world.coordinator.topic)
    assert (wanted.name, wanted.replication_factor) == (GROUP_TOPIC, replicas)


@pytest.mark.parametrize(("protocols", "level", "expected"), [
    ("classic,consumer", 1, True), ("classic", 1, False), ("classic,consumer", 0, False), ("classic", 0, False),
])  # fmt: skip
def test_consumer_groups_are_served_by_the_configuration_and_the_level(
    protocols: str, level: int, *, expected: bool
) -> None:
    world = World(HERE, group_coordinator_rebalance_protocols=protocols)
    features = FeaturesRecord(levels={"group.version": level})
    world.metadata.image = msgspec.structs.replace(world.metadata.image, features=features)
    assert world.coordinator.serves_consumer_groups == expected


def test_only_an_empty_group_id_is_invalid() -> None:
    coordinator = World(HERE).coordinator
    assert coordinator.find_named("g") is coordinator.find("g")
    assert coordinator.find_named("") == ErrorCode.INVALID_GROUP_ID


# ---------------------------------------------------------------------- clients
def context(client_id: str | None) -> RequestContext:
    connection: Any = SimpleNamespace(peer="[::1]:4711")
    return RequestContext(api_version=6, client_id=client_id, connection=connection)


@pytest.mark.parametrize("client_id", ["me", None])
def test_nothing_is_hidden_from_a_client_where_all_is_allowed(client_id: str | None) -> None:
    world = World(HERE)
    world.broker.authorizer = SimpleNamespace(allows_all=True)
    client = world.coordinator.client_of(context(client_id))
    assert (client.client_id, client.host, client.api_version, client.may_see) == (client_id or "", "/[::1]", 6, None)


@pytest.mark.parametrize("client_id", ["me", None])
def test_rules_decide_which_topics_a_client_may_see(client_id: str | None) -> None:
    world = World(HERE)
    asked = context(client_id)

    def authorize(by: Any, operation: Any, resource: Any) -> bool:
        assert by is asked
        assert operation.name == "DESCRIBE"
        return bool(resource.name == "t")

    world.broker.authorizer = SimpleNamespace(allows_all=False, authorize=authorize)
    client = world.coordinator.client_of(asked)
    assert (client.client_id, client.host, client.api_version) == (client_id or "", "/[::1]", 6)
    assert client.may_see is not None
    assert [client.may_see(name) for name in "tu"] == [True, False]


# ---------------------------------------------------------------------- whose turn it is
def test_what_is_led_here_is_loaded_with_a_tick_and_by_a_request_for_all() -> None:
    world = World(HERE, THERE, HERE)
    world.coordinator.on_tick()
    assert sorted(world.coordinator._runtime.shards) == [0, 2]
    assert [shard.number for shard in World(HERE, THERE, HERE).shards()] == [0, 2]


def test_all_that_is_coordinated_here_is_not_known_before_all_of_it_is_loaded() -> None:
    world = World(HERE, HERE)
    world.partitions[KEY] = world.led(KEY, end_offset=5)
    assert world.coordinator.loaded() == LOADING
    assert len(world.work) == 1, "its log is read"


def test_nothing_is_coordinated_without_the_topic() -> None:
    """Its partitions may be here for a moment longer."""
    world = World(HERE)
    world.coordinator.on_tick()
    shard = world.shard()
    world.set_topics()
    world.coordinator.on_tick()
    assert shard.unloaded
    other = World(HERE)
    other.set_topics()
    assert other.shards() == []


def test_nothing_is_coordinated_by_a_broker_that_stops() -> None:
    world = World(HERE)
    shard = world.shard()
    world.coordinator.close()
    assert shard.unloaded
    assert world.coordinator.find(GROUP) == ErrorCode.NOT_COORDINATOR


def test_a_deadline_that_a_decision_has_set_has_a_timer() -> None:
    world = World(HERE)
    shard = world.shard()
    world.later.clear()
    deadline_ms = world.now_ms + 30
    world.coordinator.carry_out(shard, lambda _: shard.state.timers.schedule(("expiry", "", ""), deadline_ms))
    assert [delay_s for delay_s, _, _ in world.later] == [0.03]


# ---------------------------------------------------------------------- what may be answered
def replicated(world: World) -> Any:
    """The partition has followers: nothing is committed before a test says so."""
    world.partition().leadership = object()
    return world.partition()


@pytest.mark.parametrize(("committed", "is_there"), [(0, False), (1, True), (2, True)])
def test_what_is_known_of_a_group_is_answered_when_its_last_record_is_committed(
    committed: int, *, is_there: bool
) -> None:
    world = World(HERE)
    partition = replicated(world)
    shard = world.commit_offset()
    world.commit(partition, 0, ErrorCode.NONE)
    shard.waiting.clear()
    partition.log.log_end_offset, partition.log.high_watermark = 2, committed
    assert shard.state.read_barrier(GROUP) == 0
    known = iter(["then", "later"])
    pending: Pending[str] = world.coordinator.when_readable(shard, GROUP, lambda error: f"{next(known)} {error.name}")
    assert (pending.response == "then NONE") == is_there
    world.commit(partition, 1)
    assert pending.response == "then NONE", "as it was when it was asked for"


def test_why_what_is_known_of_a_group_could_not_be_committed_is_answered() -> None:
    world = World(HERE)
    replicated(world)
    shard = world.commit_offset()
    pending: Pending[ErrorCode] = world.coordinator.when_readable(shard, GROUP, lambda error: error)
    world.now_ms += 60_000
    world.coordinator.on_tick()
    assert pending.response == UNAVAILABLE


def test_all_is_committed_when_the_end_of_the_log_is() -> None:
    world = World(HERE)
    partition = replicated(world)
    shard = world.commit_offset()
    outcomes: list[ErrorCode] = []
    world.coordinator.when_all_committed(shard, outcomes.append)
    assert outcomes == []
    world.commit(partition)
    assert outcomes == [NONE]
    world.coordinator.when_all_committed(shard, outcomes.append)
    assert outcomes == [NONE, NONE], "at once"


@pytest.mark.parametrize("how", ["unloaded", "led elsewhere"])
def test_nothing_is_committed_by_who_is_no_coordinator(how: str) -> None:
    world = World(HERE)
    shard = world.commit_offset()
    if how == "unloaded":
        world.coordinator._runtime._unload(shard)
        assert shard.leads
    else:
        world.partition().is_leader = False
    outcomes: list[ErrorCode] = []
    world.coordinator.when_all_committed(shard, outcomes.append)
    assert outcomes == [ErrorCode.NOT_COORDINATOR]


def test_a_survey_is_of_all_that_is_coordinated_here() -> None:
    world = World(HERE, HERE)
    first, second = world.shards()
    world.commit_offset("a", shard=first)
    world.commit_offset("b", shard=second)
    topic_id = world.metadata.image.topics["t"].topic_id
    asked = [ConsumedOffsetsTopic(name="t", topic_id=topic_id, partitions=[0])]
    answer = asyncio.run(survey(world.coordinator, asked))
    assert [(row.partition_index, row.leader_epoch) for row in answer.coordinators] == [(0, 3), (1, 3)]
    assert [(row.consumed_offset, row.group_id) for row in answer.topics[0].partitions] == [(5, "a")]


def test_a_survey_asks_how_far_share_groups_are() -> None:
    world = World(HERE)
    world.begin_share_group(0, 1)
    asked = [ConsumedOffsetsTopic(name="t", topic_id=world.metadata.image.topics["t"].topic_id, partitions=[0, 1])]
    place = SharePlace(GROUP, asked[0].topic_id, 0)
    world.persister.starts[place] = SummaryStatePartitionResult(partition=0, start_offset=8)
    answer = asyncio.run(survey(world.coordinator, asked))
    assert [(row.consumed_offset, row.group_id) for row in answer.topics[0].partitions] == [(8, GROUP), (-1, GROUP)]


def test_a_survey_asks_no_share_coordinator_without_a_share_group() -> None:
    world = World(HERE)
    world.commit_offset()
    asyncio.run(survey(world.coordinator, [ConsumedOffsetsTopic(name="t", topic_id=bytes(16), partitions=[0])]))
    assert world.persister.asked == []


def test_first_heartbeats_take_turns_where_there_are_many() -> None:
    world = World(HERE)
    first, second = (world.coordinator.joins.carry_out(lambda number=number: number) for number in (1, 2))  # type: ignore[misc]
    assert first == 1
    assert isinstance(second, Pending)
    world.run()
    assert second.response == 2


# ---------------------------------------------------------------------- what is refused and counted
def test_what_is_held_and_refused_is_counted() -> None:
    world = World(HERE, HERE)
    coordinator = world.coordinator
    first, second = world.shards()
    world.commit_offset("a", shard=first)
    world.commit_offset("b", shard=second)
    world.commit_offset("b", shard=second, name="u")
    assert coordinator.held() == HeldGroups(2, 3, 0, 0)
    coordinator._memory.refused_count, coordinator._admission.refused_count = 5, 3
    assert coordinator.held().refused == 8
    coordinator.on_tick()
    assert coordinator.held().refused == 8
    assert [(level, values["refused"]) for level, _, values in world.lines] == [("warning", 5), ("warning", 3)]
    assert world.lines[1][2] == {"refused": 3, "groups": 2, "offsets": 3}
    coordinator.on_tick()
    assert len(world.lines) == 2, "a line is about what was refused since the last tick"
    coordinator._memory.refused_count = 1
    coordinator.on_tick()
    assert coordinator.held().refused == 9
    assert len(world.lines) == 3


def test_hashes_are_forgotten_when_most_groups_have_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[int] = []
    world = World(HERE)
    monkeypatch.setattr(group_coordinator, "forget_hashes", lambda: forgotten.append(count))  # type: ignore[has-type]
    for count in (2 * GROUPS_GONE_MIN, GROUPS_GONE_MIN + 1, 10, 10):  # type: int
        world.coordinator._admission.count_groups = lambda count=count: count  # type: ignore[misc]
        world.coordinator.on_tick()
    assert forgotten == [10]


# ---------------------------------------------------------------------- transactions
def test_offsets_are_kept_in_the_partition_of_their_group() -> None:
    world = World(HERE, HERE, HERE)
    assert world.coordinator.partition_of("a") == TopicPartition(GROUP_TOPIC, ord("a") % 3)
    assert GroupCoordinator.is_kept_in(GROUP_TOPIC)
    assert not GroupCoordinator.is_kept_in("t")


def test_a_marker_is_noted_in_the_state_of_its_partition() -> None:
    world = World(HERE)
    shard = world.commit_offset()
    assert world.coordinator.may_mark(world.partition())
    noted: list[Any] = []
    shard.state.note = lambda change, offset: noted.append((change.producer_id, change.is_commit, offset))
    marker = make_marker(7, 0, is_commit=True, coordinator_epoch=0, epoch_is_bumped=False, now_ms=1)
    world.coordinator.note_marker(world.partition(), marker, 9)
    assert noted == [(7, True, 9)]


# ---------------------------------------------------------------------- deleted topics
def names(world: World, group_id: str = GROUP) -> set[str]:
    """The topics for which a group has offsets."""
    return {name for shard in world.shards() for name in shard.state.committed.offsets.get(group_id, {})}


def test_offsets_in_a_deleted_topic_are_forgotten_in_all_partitions() -> None:
    world = World(HERE, HERE, HERE)
    shards = world.shards()
    gone = topic("t", HERE)
    for shard, group_id in zip(shards, "abc", strict=True):
        world.commit_offset(group_id, shard=shard, topic_id=gone.topic_id)
        world.commit_offset(group_id, shard=shard, name="u")
    world.partitions[KEY].is_leader = False
    world.coordinator.on_image(ImageDelta(topics_deleted=(gone,)))
    world.run()
    assert world.coordinator.find("c") != NONE
    assert [set(shard.state.committed.offsets[group_id]) for shard, group_id in zip(shards[1:], "bc", strict=True)] == [
        {"u"},
        {"u"},
    ]


def test_the_coordinators_own_topic_is_none_that_offsets_are_forgotten_for() -> None:
    world = World(HERE)
    world.commit_offset(name=GROUP_TOPIC)
    kept = len(world.appended)
    world.coordinator.on_image(ImageDelta(topics_deleted=(topic(GROUP_TOPIC, HERE),)))
    world.run()
    assert (len(world.appended), names(world)) == (kept, {GROUP_TOPIC})


def test_states_of_share_groups_in_a_deleted_topic_are_forgotten() -> None:
    world = World(HERE)
    shard = world.begin_share_group(0)
    world.coordinator.on_image(ImageDelta(topics_deleted=(world.metadata.image.topics["t"],)))
    world.run()
    group = shard.state.by_id.find_share(GROUP)
    assert group is not None
    assert not group.states.initialized


def test_a_new_topic_is_one_that_patterns_may_match() -> None:
    world = World(HERE)
    world.metadata.image = msgspec.structs.replace(world.metadata.image, revision=77)
    kept = len(world.appended)
    world.coordinator.on_image(ImageDelta(topics_created=(topic("u", HERE),)))
    assert world.coordinator._topics.new_topics_revision == 77
    assert len(world.appended) == kept
