"""Streams groups: joining, tasks that move, leaving, silent members, static members, topics, statuses and settings."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.streams import streams_heartbeats, streams_targets
from lowtide.broker.coordinator.streams.streams_group import StreamsGroupState
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.streams_group_heartbeat import (
    STATIC_LEAVE_EPOCH,
    StreamsEndpoint,
    StreamsGroupHeartbeatResponse,
    StreamsStatus,
    StreamsTaskOffset,
)
from tests.unit.broker.coordinator.group_world import GROUP
from tests.unit.broker.coordinator.streams_world import QUICK, StreamsWorld, internal, subtopology, tasks, topology

ALL = {0, 1, 2, 3}
SESSION_MS = QUICK.streams_session_timeout_ms


@pytest.fixture
def world() -> StreamsWorld:
    return StreamsWorld()


def statuses(response: StreamsGroupHeartbeatResponse) -> list[int]:
    return [row.status_code for row in response.status or ()]


def error_of(world: StreamsWorld, member_id: str, epoch: int, **more: Any) -> ErrorCode:
    return ErrorCode(world.beat(member_id, epoch, **more).error)


# ------------------------------------------------------------------ joining and leaving
def test_the_first_member_gets_all_tasks(world: StreamsWorld) -> None:
    response = world.enter("a")
    assert (response.member_epoch, response.active_tasks) == (2, tasks({"0": [0, 1, 2, 3]}))
    assert (response.standby_tasks, response.warmup_tasks, response.status) == ([], [], [])
    assert (response.heartbeat_interval_ms, response.task_offset_interval_ms) == (5_000, 60_000)
    assert response.acceptable_recovery_lag == 10_000
    assert world.group.state is StreamsGroupState.STABLE
    again = world.report("a")
    assert (again.active_tasks, again.member_epoch) == (None, 2), "nothing has changed"
    world.check_reload()


def test_a_task_moves_after_its_owner_has_revoked_it(world: StreamsWorld) -> None:
    """The second member waits; the first learns what to revoke, and in which epoch it is once it has."""
    world.enter("a")
    assert world.enter("b").active_tasks == []
    a = world.beat("a", 2).response
    kept = world.active("a")
    assert len(kept) == 2
    assert a.active_tasks == tasks({"0": sorted(kept)})
    assert (a.member_epoch, world.group.state) == (2, StreamsGroupState.RECONCILING)
    assert world.report("b").active_tasks is None, "the first member still has them"
    assert world.report("a").member_epoch == 3
    assert world.report("b").active_tasks == tasks({"0": sorted(ALL - kept)})
    assert world.group.state is StreamsGroupState.STABLE
    world.check_reload()


def test_the_tasks_of_a_member_that_leaves_go_to_the_others(world: StreamsWorld) -> None:
    world.enter("a")
    world.enter("b")
    world.settle()
    left = world.beat("b", 3, active_tasks=[], standby_tasks=[], warmup_tasks=[]).response
    assert left.member_epoch == 3
    gone = world.beat("b", -1).response
    assert (gone.member_epoch, gone.status) == (-1, [])
    world.settle()
    assert world.active("a") == ALL
    world.beat("a", -1)
    assert (world.group.state, world.group.target_epoch) == (StreamsGroupState.EMPTY, world.group.group_epoch)
    world.check_reload()


def test_a_silent_member_is_removed(world: StreamsWorld) -> None:
    world.enter("a")
    world.enter("b")
    world.settle()
    world.pass_time(SESSION_MS - 1)
    world.report("a")
    world.pass_time(1)
    assert list(world.group.members) == ["a"]
    assert error_of(world, "b", 3) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_does_not_revoke_in_time_is_removed(world: StreamsWorld) -> None:
    world.enter("a", rebalance_timeout_ms=10_000)
    world.enter("b")
    world.beat("a", 2)
    world.pass_time(9_999)
    assert set(world.group.members) == {"a", "b"}
    world.pass_time(1)
    assert set(world.group.members) == {"b"}


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        (3, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (1, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (0, None, ErrorCode.NONE),
        (2, {"0": [0, 1, 2, 3]}, ErrorCode.NONE),
    ],
)
def test_epochs_of_a_member(world: StreamsWorld, epoch: int, owned: Any, error: ErrorCode) -> None:
    world.enter("a")
    more = {} if owned is None else {"active_tasks": tasks(owned), "standby_tasks": [], "warmup_tasks": []}
    answer = world.joining("a") if epoch == 0 else world.beat("a", epoch, **more)
    assert answer.error == error


def test_a_member_may_miss_the_answer_with_its_new_epoch(world: StreamsWorld) -> None:
    """It repeats the heartbeat in its previous epoch, with tasks that it has; with others it is fenced."""
    world.enter("a")
    world.enter("b")
    world.beat("a", 2)
    kept = sorted(world.active("a"))
    given = {"standby_tasks": [], "warmup_tasks": []}
    assert world.beat("a", 2, active_tasks=tasks({"0": kept}), **given).response.member_epoch == 3
    assert error_of(world, "a", 2, active_tasks=tasks({"0": [0, 1, 2, 3]}), **given) == ErrorCode.FENCED_MEMBER_EPOCH
    assert error_of(world, "a", 2, active_tasks=tasks({"0": kept}), **given) == ErrorCode.NONE


def test_a_member_that_missed_its_tasks_learns_of_them(world: StreamsWorld) -> None:
    """Kafka does not repeat them. The member reports all that it has, in its old epoch or in the same."""
    world.enter("a")
    world.enter("b")
    world.beat("a", 2)
    kept = sorted(world.active("a"))
    given = {"active_tasks": tasks({"0": [0, 1, 2, 3]}), "standby_tasks": [], "warmup_tasks": []}
    assert world.beat("a", 2, **given).response.active_tasks == tasks({"0": kept}), "it still has more"
    world.report("a")
    world.report("b")
    none = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    assert world.beat("b", 3, **none).response.active_tasks == tasks({"0": sorted(ALL - set(kept))})
    assert world.beat("a", 2, **given | {"active_tasks": tasks({"0": kept})}).response.active_tasks == (
        tasks({"0": kept})
    )


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topology": None}, ErrorCode.INVALID_REQUEST),
        ({"active_tasks": tasks({"0": [1]})}, ErrorCode.INVALID_REQUEST),
        ({"active_tasks": None}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, ErrorCode.INVALID_REQUEST),
        ({"topology": topology(subtopology("0", "__consumer_offsets"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": topology(subtopology("0", "a b"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": topology(subtopology("0", "t"), subtopology("0", "t"))}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
        ({"topology": topology(epoch=-1)}, ErrorCode.STREAMS_INVALID_TOPOLOGY),
    ],
)
def test_a_heartbeat_with_wrong_fields_changes_nothing(
    world: StreamsWorld, more: dict[str, Any], error: ErrorCode
) -> None:
    answer = world.joining("a", **more)
    assert (answer.error, answer.response.status) == (error, [])
    assert not world.log


def test_a_changelog_has_no_partition_count_of_its_own(world: StreamsWorld) -> None:
    row = subtopology("0", "t")
    row.state_changelog_topics = [internal("c", 3)]
    answer = world.joining("a", topology=topology(row))
    assert answer.error == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert "Changelog topic c must have an undefined partition count" in answer.response.error_message


def test_a_group_has_one_topology(world: StreamsWorld) -> None:
    """A member with an older one is told so; another one of the same epoch is refused, as in Kafka 4.4."""
    world.enter("a", topology=topology(epoch=1))
    assert statuses(world.enter("b", topology=topology(epoch=0))) == [StreamsStatus.STALE_TOPOLOGY]
    other = topology(subtopology("0", "t"), subtopology("1", "t"), epoch=1)
    assert world.joining("c", topology=other).error == ErrorCode.INVALID_REQUEST
    assert set(world.group.members) == {"a", "b"}


def test_a_full_group_takes_no_member(world: StreamsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's key sets the limit, but not above Lowtide's own. A member that joins again is no new one."""
    monkeypatch.setattr(streams_heartbeats, "MEMBERS_MAX", 1)
    world.enter("a")
    assert world.joining("b").error == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.joining("a").error == ErrorCode.NONE


def test_tasks_that_the_topology_does_not_have_are_refused(world: StreamsWorld) -> None:
    world.enter("a")
    for active in ({"0": [4]}, {"7": [0]}):
        assert error_of(world, "a", 2, active_tasks=tasks(active), standby_tasks=[], warmup_tasks=[]) == (
            ErrorCode.INVALID_REQUEST
        )


# ------------------------------------------------------------------ topics
def test_a_group_without_its_source_topics_is_not_ready() -> None:
    """The epoch rises when the topic comes, and its tasks are assigned; they are taken away when it goes."""
    world = StreamsWorld(topics={})
    response = world.enter("a")
    assert statuses(response) == [StreamsStatus.MISSING_SOURCE_TOPICS]
    assert (response.active_tasks, world.group.state) == ([], StreamsGroupState.NOT_READY)
    world.cluster.set_topic("t", 2)
    assert statuses(world.report("a")) == []
    assert world.active("a") == {0, 1}
    assert world.group.state is StreamsGroupState.STABLE
    world.cluster.set_topic("t", 0)
    assert statuses(world.report("a")) == [StreamsStatus.MISSING_SOURCE_TOPICS]
    assert world.group.state is StreamsGroupState.NOT_READY
    world.check_reload()


def test_missing_internal_topics_are_to_be_created(world: StreamsWorld) -> None:
    rows = topology(subtopology("0", "t", changelogs=("c",)))
    assert statuses(world.enter("a", topology=rows)) == [StreamsStatus.MISSING_INTERNAL_TOPICS]
    assert [(row.name, row.partitions) for row in world.to_create.values()] == [("c", 4)]
    world.cluster.set_topic("c", 4)
    assert (statuses(world.report("a")), world.to_create) == ([], {})
    assert world.active("a") == ALL


# ------------------------------------------------------------------ time
def test_the_first_target_waits_for_more_members() -> None:
    world = StreamsWorld(GroupSettings(streams_assignment_interval_ms=0))
    assert statuses(world.enter("a")) == [StreamsStatus.ASSIGNMENT_DELAYED]
    world.pass_time(2_000)
    assert statuses(world.enter("b")) == [StreamsStatus.ASSIGNMENT_DELAYED]
    world.pass_time(1_000)
    assert statuses(world.report("a")) == []
    world.report("b")
    assert len(world.active("a")) == len(world.active("b")) == 2


def test_a_second_target_waits_for_the_interval() -> None:
    world = StreamsWorld(GroupSettings(streams_initial_rebalance_delay_ms=0))
    world.enter("a")
    assert statuses(world.enter("b")) == [StreamsStatus.ASSIGNMENT_DELAYED]
    assert world.group.state is StreamsGroupState.ASSIGNING
    world.pass_time(1_000)
    assert world.group.target_epoch == world.group.group_epoch, "made by itself, before a heartbeat"
    world.settle()
    assert len(world.active("a")) == len(world.active("b")) == 2


def test_a_large_target_is_computed_in_a_worker(world: StreamsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members learn of it with their next heartbeat; one that leaves meanwhile gets nothing."""
    monkeypatch.setattr(streams_targets, "HEAVY", 3)
    world.holds_work = True
    world.enter("a")
    world.enter("b")
    world.pass_time(0)
    assert (len(world.work), world.group.state) == (1, StreamsGroupState.ASSIGNING)
    world.enter("c")
    world.beat("b", -1)
    world.pass_time(0)
    assert len(world.work) == 1, "one at a time"
    world.do_work()
    assert (set(world.group.targets), world.group.target_epoch) == ({"a"}, 3)
    world.pass_time(0)
    world.do_work()
    world.settle()
    assert len(world.active("a")) == len(world.active("c")) == 2
    assert world.group.state is StreamsGroupState.STABLE
    world.check_reload()


# ------------------------------------------------------------------ static members
def test_a_static_member_returns_to_its_tasks(world: StreamsWorld) -> None:
    world.enter("a", instance_id="i")
    taken = world.joining("b", instance_id="i")
    assert taken.error == ErrorCode.UNRELEASED_INSTANCE_ID
    left = world.beat("a", STATIC_LEAVE_EPOCH, instance_id="i").response
    assert left.member_epoch == STATIC_LEAVE_EPOCH
    assert list(world.group.members) == ["a"]
    back = world.enter("b", instance_id="i")
    assert back.active_tasks == tasks({"0": [0, 1, 2, 3]})
    assert (list(world.group.members), world.group.static_members) == (["b"], {"i": "b"})
    assert error_of(world, "a", back.member_epoch, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert error_of(world, "a", -1, instance_id="j") == ErrorCode.UNKNOWN_MEMBER_ID
    world.check_reload()


def test_a_static_member_that_stays_away_is_removed(world: StreamsWorld) -> None:
    world.enter("a", instance_id="i")
    world.beat("a", STATIC_LEAVE_EPOCH, instance_id="i")
    world.pass_time(SESSION_MS)
    assert not world.group.members


# ------------------------------------------------------------------ what members tell
def test_one_member_shuts_the_application_down(world: StreamsWorld) -> None:
    world.enter("a")
    world.enter("b")
    assert statuses(world.report("a", shutdown_application=True)) == [StreamsStatus.SHUTDOWN_APPLICATION]
    status = (world.report("b").status or [])[0]
    assert status.status_code == StreamsStatus.SHUTDOWN_APPLICATION
    assert status.status_detail.startswith("Streams group member a encountered a fatal error")
    for member_id in ("a", "b"):
        world.beat(member_id, -1)
    assert StreamsStatus.SHUTDOWN_APPLICATION not in statuses(world.enter("c"))


def test_task_offsets_are_kept_until_the_member_goes(world: StreamsWorld) -> None:
    world.enter("a")
    before = world.group.memory.held_bytes
    row = StreamsTaskOffset(subtopology_id="0", partition=1, offset=7)
    world.report("a", task_offsets=[row])
    world.report("a", task_end_offsets=[row])
    reported = world.group.reports.task_offsets["a"]
    assert reported.offsets == reported.end_offsets == {("0", 1): 7}
    assert world.group.memory.held_bytes > before
    assert error_of(world, "a", 2, task_offsets=[row, row]) == ErrorCode.INVALID_REQUEST
    world.beat("a", -1)
    assert not world.group.reports.task_offsets


def test_members_learn_the_endpoints_of_others(world: StreamsWorld) -> None:
    """Once each time that the endpoints or their tasks change."""
    endpoint = StreamsEndpoint(host="h", port=1)
    world.enter("a", user_endpoint=endpoint)
    first = world.report("a", user_endpoint=StreamsEndpoint(host="h", port=2))
    assert first.endpoint_information_epoch == 1
    row = (first.partitions_by_user_endpoint or [])[0]
    assert (row.user_endpoint.port, row.active_partitions[0].partitions) == (2, [0, 1, 2, 3])
    assert world.report("a", endpoint_information_epoch=1).partitions_by_user_endpoint is None


@pytest.mark.parametrize(("version", "expected"), [(0, []), (1, [StreamsStatus.MISSING_CLIENT_TAGS])])
def test_a_member_without_the_tags_of_the_group_is_told_so(version: int, expected: list[int]) -> None:
    world = StreamsWorld(
        GroupSettings(
            streams_assignment_interval_ms=0, streams_initial_rebalance_delay_ms=0, streams_rack_aware_tags=("zone",)
        )
    )
    assert statuses(world.enter("a", client_version=version)) == expected


# ------------------------------------------------------------------ writes that fail
def test_a_member_whose_record_can_not_be_written_has_not_joined(world: StreamsWorld) -> None:
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.joining("a").error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in world.groups.by_id
    world.append_fails = None
    assert world.enter("a").active_tasks == tasks({"0": [0, 1, 2, 3]})


def test_removing_a_silent_member_is_tried_again(world: StreamsWorld) -> None:
    world.enter("a")
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    world.pass_time(SESSION_MS)
    assert list(world.group.members) == ["a"]
    world.append_fails = None
    world.pass_time(500)
    assert not world.group.members
