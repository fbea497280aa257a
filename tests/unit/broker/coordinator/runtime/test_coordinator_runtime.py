"""The coordinators' runtime: whose turn it is, what is appended, when what waits continues, and its one timer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.coordinator.runtime.effects import Effects, Job, WorkerCall
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.shard import Shard, make_batch
from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommits, OffsetCommitValue, encode_group_metadata
from tests.unit.broker.coordinator.runtime.runtime_world import (
    COMMIT_TIMEOUT_MS,
    WALL_MS,
    State,
    World,
    partition_of,
    pending,
    removal,
)

NONE, DEPOSED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER
REPLICATED = {"leadership": "other replicas"}


@pytest.fixture
def world() -> World:
    return World()


def waiting_world() -> tuple[World, Shard[State]]:
    """A world whose partitions have other replicas: what is appended is committed later."""
    world = World(**REPLICATED)
    return world, world.shard()


# ------------------------------------------------------------------ whose turn it is
def test_a_partition_that_is_led_has_one_state(world: World) -> None:
    shard = world.shard()
    assert world.shard() is shard
    assert shard.state.events == ["loaded"]
    assert (shard.number, shard.partition, shard.led_since) == (0, world.replicas.partitions[0], 5)


def test_the_state_of_a_leadership_lasts_over_leader_epochs(world: World) -> None:
    """As after the removal of a replica: the log is the same."""
    shard = world.shard()
    world.replicas.partitions[0].leader_epoch = 6
    assert world.shard() is shard
    assert shard.leads


@pytest.mark.parametrize(("changed", "leads"), [({"led_since": 6}, True), ({"is_leader": False}, False)])
def test_the_state_of_another_leadership_is_not_used(world: World, changed: dict[str, Any], leads: bool) -> None:
    shard = world.shard()
    for name, value in changed.items():
        setattr(world.replicas.partitions[0], name, value)
    found = world.runtime.find(0)
    assert (shard.unloaded, shard.state.events) == (True, ["loaded", "unloaded"])
    assert found is not shard
    assert found is world.runtime.shards[0] if leads else found == ErrorCode.NOT_COORDINATOR


def test_the_state_of_a_partition_that_was_here_before_is_not_used(world: World) -> None:
    shard = world.shard()
    world.replicas.partitions[0] = partition_of(0)
    assert world.shard() is not shard
    del world.replicas.partitions[0]
    assert world.runtime.find(0) == ErrorCode.NOT_COORDINATOR
    assert world.runtime.shards == {}


def test_a_state_that_is_being_loaded_is_not_used_yet(world: World) -> None:
    log = world.replicas.partitions[0].log
    log.log_end_offset, log.read = 5, lambda *_, **__: SimpleNamespace(slice="bytes to come")
    assert [world.runtime.find(0) for _ in range(2)] == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 2
    assert not world.runtime.may_mark(world.replicas.partitions[0])
    world.runtime.note_marker(world.replicas.partitions[0], marker(), 4)
    assert world.runtime.shards[0].state.events == []
    assert len(world.work) == 1
    world.runtime._set_timer(world.runtime.shards[0])
    world.runtime.shards[0].state.timers.schedule("early", 1)
    world.runtime._set_timer(world.runtime.shards[0])
    assert world.timer() is None


def test_all_partitions_are_looked_after(world: World) -> None:
    world.runtime.follow(3)
    assert sorted(world.runtime.shards) == [0, 1, 2]
    shards = dict(world.runtime.shards)
    world.runtime.follow(2)
    assert (sorted(world.runtime.shards), shards[2].unloaded) == ([0, 1], True)


def test_a_runtime_that_is_closed_has_no_state(world: World) -> None:
    shards = [world.shard(0), world.shard(1)]
    world.runtime.close()
    assert [shard.state.events for shard in shards] == [["loaded", "unloaded"]] * 2
    assert world.timer() is None
    assert world.runtime.find(0) == ErrorCode.NOT_COORDINATOR
    shards[0].loaded, shards[0].state.timers.has_sooner = True, True
    world.runtime._set_timer(shards[0])
    assert world.timer() is None


# ------------------------------------------------------------------ records
def test_what_no_other_replica_has_to_keep_is_committed_at_once(world: World) -> None:
    shard = world.shard()
    assert world.keep(shard, "a", "b") == [NONE]
    assert world.replicas.appended == [2]
    assert shard.state.events[1:] == [(removal("a"), 0), (removal("b"), 1)]


def test_records_have_the_offsets_that_they_have_in_the_log(world: World) -> None:
    shard = world.shard()
    effects = world.runtime.effects()
    value = OffsetCommitValue(offset=1, metadata="", commit_timestamp=effects.wall_ms)
    effects.keep_group("a", None)
    offsets = OffsetCommits("g", "t", {0: value, 1: value, 2: value}, 0)
    effects.keep_offsets(offsets)
    effects.keep_group("b", None)
    effects.keep_group("c", None)
    shard.partition.log.log_end_offset = 10
    world.runtime.carry_out(shard, effects)
    assert shard.state.events[1:] == [(removal("a"), 10), (offsets, 11), (removal("b"), 14), (removal("c"), 15)]


@pytest.mark.parametrize(("takes", "is_unloaded"), [(100, False), (0, False), (1, True)])
def test_a_state_has_all_records_of_a_decision_or_none(world: World, takes: int, is_unloaded: bool) -> None:
    """If the log has a part of them, a coordinator that loads the log would differ, so the state is loaded again."""
    shard, log = world.shard(), world.replicas.partitions[0].log
    log.config.max_message_bytes = 1_000
    world.replicas.takes, world.replicas.fails = takes, ErrorCode.RECORD_LIST_TOO_LARGE
    value = OffsetCommitValue(offset=1, metadata="m" * 100, commit_timestamp=WALL_MS)
    offsets = OffsetCommits("g", "t", dict.fromkeys(range(30), value), 3_000)
    effects, outcomes = world.runtime.effects(), list[ErrorCode]()
    effects.keep_offsets(offsets)
    effects.then.append(lambda error, _: outcomes.append(error))
    world.runtime.carry_out(shard, effects)
    batches = len(world.replicas.appended)
    assert (min(batches, 2), log.log_end_offset == 30) == (min(takes, 2), takes == 100)
    assert (outcomes, shard.unloaded) == ([NONE if takes == 100 else ErrorCode.RECORD_LIST_TOO_LARGE], is_unloaded)
    noted = [(offsets, 0)] if takes == 100 else ["unloaded"] if is_unloaded else []
    assert shard.state.events[1:] == noted
    assert (world.runtime.shards == {}) is is_unloaded


def test_records_of_a_transaction_are_noted_as_such(world: World) -> None:
    shard = world.shard()
    effects = world.runtime.effects()
    effects.producer = (7, 3)
    effects.keep_group("a", None)
    world.runtime.carry_out(shard, effects)
    assert shard.state.events[1:] == [(InTransaction(7, removal("a")), 0)]


@pytest.mark.parametrize("spare_bytes", [0, -1])
def test_a_batch_may_be_as_large_as_the_topic_allows(world: World, spare_bytes: int) -> None:
    shard = world.shard()
    records = [encode_group_metadata("a", None)]
    shard.partition.log.config.max_message_bytes = make_batch(records, WALL_MS).size_bytes + spare_bytes  # type: ignore[misc]
    assert world.keep(shard, "a") == [NONE if not spare_bytes else ErrorCode.MESSAGE_TOO_LARGE]


def test_records_are_kept_in_order_behind_those_that_wait() -> None:
    world, shard = waiting_world()
    first = world.keep(shard, "a")
    shard.partition.leadership = None
    second = world.keep(shard, "b")
    assert world.replicas.appended == [1, 1]
    assert (first, second) == ([], [])


def test_an_unloaded_state_appends_nothing(world: World) -> None:
    shard = world.shard()
    world.runtime._unload(shard)
    assert shard.leads
    assert world.keep(shard, "a") == [DEPOSED]
    other = world.shard(1)
    other.partition.is_leader = False
    assert world.keep(other, "a") == [DEPOSED]
    assert world.replicas.appended == []


def test_too_few_replicas_in_sync_refuse_records() -> None:
    world = World(**REPLICATED, has_enough_in_sync=False)
    assert world.keep(world.shard(), "a") == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert world.replicas.appended == []


def test_records_that_no_request_waits_for_are_logged_when_they_are_lost(world: World) -> None:
    shard = world.shard()
    for fails in (None, ErrorCode.KAFKA_STORAGE_ERROR):
        world.replicas.fails = fails
        effects = world.runtime.effects()
        effects.keep_group("a", None)
        world.runtime.carry_out(shard, effects)
    assert [(level, words["error"]) for level, _, words in world.lines] == [("warning", "KAFKA_STORAGE_ERROR")]
    assert shard.state.events[1:] == [(removal("a"), 0)]


# ------------------------------------------------------------------ answers
def test_answers_are_given_when_records_are_committed() -> None:
    world, shard = waiting_world()
    first, second = world.keep(shard, "a", "b"), world.keep(shard, "c")
    assert len(world.replicas.asked) == 1, "one question at a time is out to the partition"
    world.commit(shard, 1)
    assert (first, second) == ([], [])
    world.commit(shard, 2)
    assert (first, second) == ([NONE], [])
    assert [end_offset for _, end_offset, _ in world.replicas.asked] == [3]
    world.commit(shard, 3)
    assert (second, len(shard.waiting), world.replicas.asked) == ([NONE], 0, [])
    third = world.keep(shard, "d")
    world.commit(shard, 4)
    assert third == [NONE]


def test_all_that_is_committed_continues_in_its_order() -> None:
    world, shard = waiting_world()
    answered: list[str] = []
    for name in ("first", "second", "third"):
        effects = world.runtime.effects()
        effects.keep_group(name, None)
        effects.then.append(lambda _error, _effects, name=name: answered.append(name))  # type: ignore[misc]
        world.runtime.carry_out(shard, effects)
    world.commit(shard, 2)
    assert answered == ["first", "second"]
    world.commit(shard, 3)
    assert answered == ["first", "second", "third"]


def test_what_is_committed_with_the_append_waits_for_what_was_before_it() -> None:
    world, shard = waiting_world()
    first = world.keep(shard, "a")
    shard.partition.log.high_watermark = 2
    second = world.keep(shard, "b")
    assert (first, second) == ([], [])
    world.commit(shard, 2)
    assert (first, second) == ([NONE], [NONE])


@pytest.mark.parametrize(("barrier", "waits"), [(-1, False), (2, False), (3, True), (4, True)])
def test_an_answer_waits_for_the_records_that_it_relies_on(barrier: int, waits: bool) -> None:
    """Those below 3 are committed. What waits for others doesn't hold it up."""
    world, shard = waiting_world()
    log = shard.partition.log
    log.log_end_offset, log.high_watermark = 5, 3
    world.keep(shard, "others")
    effects, outcomes = world.runtime.effects(), list[ErrorCode]()
    effects.barrier = barrier
    effects.then.append(lambda error, _: outcomes.append(error))
    world.runtime.carry_out(shard, effects)
    assert outcomes == ([] if waits else [NONE])
    assert len(shard.waiting) == (2 if waits else 1)


def test_an_answer_that_relies_on_one_record_waits_for_no_other() -> None:
    world, shard = waiting_world()
    log = shard.partition.log
    log.log_end_offset, log.high_watermark = 5, 3
    effects, outcomes = world.runtime.effects(), list[ErrorCode]()
    effects.barrier = 3
    effects.then.append(lambda error, _: outcomes.append(error))
    world.runtime.carry_out(shard, effects)
    assert shard.waiting[0].end_offset == 4
    world.commit(shard, 4)
    assert outcomes == [NONE]


def test_an_answer_that_relies_on_what_an_unloaded_state_had_is_refused() -> None:
    world, shard = waiting_world()
    shard.partition.log.log_end_offset = 5
    world.runtime._unload(shard)
    effects, outcomes = world.runtime.effects(), list[ErrorCode]()
    effects.barrier = 3
    effects.then.append(lambda error, _: outcomes.append(error))
    world.runtime.carry_out(shard, effects)
    assert outcomes == [DEPOSED]


def test_several_may_wait_for_one_decision(world: World) -> None:
    effects, replies = world.runtime.effects(), [pending(), pending(), pending()]
    times: list[tuple[int, int]] = []
    effects.answer_when_committed(replies[0], "one", lambda error: error)
    effects.then.append(
        lambda _, after: (times.append((after.now_ms, after.wall_ms)), after.answer(replies[1], "two"))[0]
    )
    effects.answer_when_committed(replies[2], "three", lambda error: error)
    world.now_ms += 1
    world.runtime.carry_out(world.shard(), effects)
    assert [reply.response for reply in replies] == ["one", "two", "three"]
    assert times == [(100, WALL_MS + 100)], "in the same turn it is the same time"


def test_what_waited_continues_at_its_own_time() -> None:
    world, shard = waiting_world()
    effects, times, reply = world.runtime.effects(), list[int](), pending()
    effects.keep_group("a", None)
    effects.then.append(lambda _, after: (times.append(after.now_ms), after.answer(reply, "done"))[0])
    world.runtime.carry_out(shard, effects)
    world.now_ms = 200
    world.commit(shard, 1)
    assert (times, reply.response) == ([200], "done")


def test_a_request_of_a_connection_that_was_closed_is_not_answered(world: World) -> None:
    reply = pending()
    reply.complete(None)
    effects = world.runtime.effects()
    effects.answer(reply, "too late")
    world.runtime.carry_out(world.shard(), effects)
    assert reply.response is None


def test_commits_are_waited_for_as_long_as_the_settings_say() -> None:
    world, shard = waiting_world()
    first = world.keep(shard, "a")
    world.now_ms += 1
    second = world.keep(shard, "b")
    world.now_ms = 100 + COMMIT_TIMEOUT_MS - 1
    world.runtime.follow(1)
    assert first == []
    world.now_ms += 1
    world.runtime.follow(1)
    assert (first, second) == ([ErrorCode.REQUEST_TIMED_OUT], [])
    world.now_ms += 1
    world.runtime.follow(1)
    assert second == [ErrorCode.REQUEST_TIMED_OUT]


def test_what_waits_in_a_state_that_is_unloaded_is_refused() -> None:
    world, shard = waiting_world()
    outcomes = [world.keep(shard, "a"), world.keep(shard, "b")]
    shard.partition.is_leader = False
    world.runtime.follow(1)
    assert outcomes == [[DEPOSED], [DEPOSED]]
    assert len(world.replicas.asked) == 1
    world.commit(shard, 2)
    assert outcomes == [[DEPOSED], [DEPOSED]]


def test_a_partition_that_cannot_commit_has_its_state_unloaded() -> None:
    world, shard = waiting_world()
    outcomes = [world.keep(shard, "a"), world.keep(shard, "b")]
    world.commit(shard, 0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert outcomes == [[DEPOSED], [DEPOSED]]
    assert shard.state.events[-1] == "unloaded"
    assert (shard.unloaded, world.replicas.asked) == (True, [])


def test_a_state_that_is_unloaded_by_what_continues_continues_no_more() -> None:
    world, shard = waiting_world()
    effects = world.runtime.effects()
    effects.keep_group("a", None)
    effects.then.append(lambda *_: world.runtime._unload(shard))
    world.runtime.carry_out(shard, effects)
    second = world.keep(shard, "b")
    world.commit(shard, 2)
    assert second == [DEPOSED]
    assert world.replicas.asked == []


@pytest.mark.parametrize(("end_offset", "at_once"), [(2, True), (3, True), (4, False)])
def test_who_asks_for_an_offset_hears_when_it_is_committed(end_offset: int, at_once: bool) -> None:
    world, shard = waiting_world()
    log = shard.partition.log
    log.log_end_offset, log.high_watermark = 5, 3
    outcomes: list[ErrorCode] = []
    world.runtime.when_committed(shard, end_offset, [lambda error, _: outcomes.append(error)])
    assert outcomes == ([NONE] if at_once else [])
    world.commit(shard, 4)
    assert outcomes == [NONE]


def test_who_asks_for_an_offset_waits_behind_the_others() -> None:
    world, shard = waiting_world()
    outcomes: list[str] = []
    for name, end_offset in (("first", 1), ("second", 0)):
        world.runtime.when_committed(shard, end_offset, [lambda _error, _effects, name=name: outcomes.append(name)])  # type: ignore[misc]
    assert outcomes == []
    world.commit(shard, 1)
    assert outcomes == ["first", "second"]


# ------------------------------------------------------------------ long work
@pytest.mark.parametrize("unloaded", [False, True])
def test_a_job_takes_turns_and_continues_unless_the_state_is_unloaded(world: World, unloaded: bool) -> None:
    shard, reply, steps = world.shard(), pending(), list[int]()
    effects = world.runtime.effects()
    effects.jobs.append(
        Job((steps.append(number) for number in range(2)), lambda after: after.answer(reply, after.now_ms))
    )
    world.runtime.carry_out(shard, effects)
    [(taken, on_done, on_failed)] = world.replicas.jobs
    list(taken)
    assert (steps, reply.done) == ([0, 1], False)
    on_failed(ValueError("broken"))
    assert world.lines[0][0] == "error"
    world.now_ms = 150
    if unloaded:
        world.runtime._unload(shard)
    on_done(None)
    assert reply.response == (None if unloaded else 150)


def test_work_is_done_by_the_worker_and_continues_with_its_result(world: World) -> None:
    shard, results = world.shard(), list[Any]()
    effects = world.runtime.effects()
    effects.work.append(WorkerCall(lambda: "result", lambda result, _: results.append(result)))
    world.runtime.carry_out(shard, effects)
    [(call, on_done)] = world.work
    assert call() == "result"
    on_done("result")
    assert (results, world.lines) == (["result"], [])
    failure = ValueError("broken")
    on_done(failure)
    assert results == ["result", failure]
    assert [(level, words["exc_info"]) for level, _, words in world.lines] == [("error", failure)]


# ------------------------------------------------------------------ markers
def marker(*, is_commit: bool = True) -> Any:
    kind = ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT
    return SimpleNamespace(producer_id=7, control=SimpleNamespace(type=kind))


@pytest.mark.parametrize("is_commit", [False, True])
def test_a_state_notes_the_markers_of_its_partition(world: World, is_commit: bool) -> None:
    shard = world.shard()
    assert world.runtime.may_mark(shard.partition)
    world.runtime.note_marker(shard.partition, marker(is_commit=is_commit), 9)
    assert shard.state.events[1:] == [(EndMarker(7, is_commit), 9)]
    world.runtime.note_marker(partition_of(1), marker(), 9)
    world.runtime.note_marker(partition_of(0), marker(), 9)
    assert len(shard.state.events) == 2
    assert not world.runtime.may_mark(partition_of(0))
    del world.replicas.partitions[1]
    assert not world.runtime.may_mark(partition_of(1))


# ------------------------------------------------------------------ coming and going
def test_loading_and_unloading_are_decisions_of_the_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = {"on_loaded": pending(), "on_unloaded": pending()}

    def answers(name: str) -> Any:
        return lambda _state, effects: effects.answer(replies[name], name)

    for name in replies:
        monkeypatch.setattr(State, name, answers(name))
    shard = world.shard()
    assert replies["on_loaded"].response == "on_loaded"
    world.runtime._unload(shard)
    assert (replies["on_unloaded"].response, world.runtime.shards) == ("on_unloaded", {})


def test_a_state_is_unloaded_once(world: World) -> None:
    shard = world.shard()
    world.runtime._unload(shard)
    world.runtime._unload(shard)
    assert shard.state.events == ["loaded", "unloaded"]


def test_effects_have_the_time_of_the_decision(world: World) -> None:
    effects: Effects = world.runtime.effects()
    assert (effects.now_ms, effects.wall_ms) == (100, WALL_MS + 100)
