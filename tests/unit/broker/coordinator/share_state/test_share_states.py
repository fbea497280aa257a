"""The states of share partitions: who may change them, what a leader reads, and what of the log they need."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.share_state import share_states
from lowtide.broker.coordinator.share_state.share_settings import ShareSettings
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.share_state_records import SharePlace, ShareStateChange

from .share_world import AVAILABLE, PLACE, TOPIC, ShareWorld, batch

NONE = ErrorCode.NONE


def rows(answer) -> list[tuple[int, int, int, int]]:
    return [msgspec.structs.astuple(each) for each in answer.response.state_batches]


def test_a_state_begins_and_is_read_and_written() -> None:
    world = ShareWorld()
    assert world.read().error == world.write(batch(0, 3)).error == ErrorCode.INVALID_REQUEST
    assert world.initialize(1).error == NONE
    read = world.read(leader_epoch=5)
    assert (read.error, read.response.start_offset, read.response.state_epoch, rows(read)) == (NONE, -1, 1, [])
    assert world.write(batch(10, 14), batch(15, 19, AVAILABLE), start_offset=10, leader_epoch=5, count=5).error == NONE
    assert world.write(batch(17, 17, AVAILABLE, count=2), start_offset=12, leader_epoch=5, count=3).error == NONE
    read = world.read(leader_epoch=5)
    assert read.response.start_offset == 12
    assert rows(read) == [(12, 14, 2, 1), (15, 16, 0, 1), (17, 17, 0, 2), (18, 19, 0, 1)]
    found = world.summarize().response
    assert (found.state_epoch, found.leader_epoch, found.start_offset, found.delivery_complete_count) == (1, 5, 12, 3)


def test_a_leader_that_another_has_followed_is_fenced() -> None:
    """The read of its successor fences it. The read is in the log, so that a new coordinator fences it too."""
    world = ShareWorld()
    world.initialize()
    world.read(leader_epoch=3)
    for _ in range(2):
        assert world.read(leader_epoch=2).error == ErrorCode.FENCED_LEADER_EPOCH
        assert world.write(batch(0, 0), leader_epoch=2).error == ErrorCode.FENCED_LEADER_EPOCH
        assert world.summarize(leader_epoch=2).error == ErrorCode.FENCED_LEADER_EPOCH
        assert world.write(batch(0, 0), leader_epoch=3).error == NONE
        world.move()


def test_a_write_that_comes_late_takes_nothing_back() -> None:
    """A leader without an answer sent it again, and then a later one. The first copy arrives last."""
    world = ShareWorld()
    world.initialize()

    def progress() -> tuple[int, int]:
        found = world.summarize().response
        return found.start_offset, found.delivery_complete_count

    for start, count, expected in (
        (5, 3, (5, 3)),
        (5, 1, (5, 3)),
        (9, 1, (9, 1)),
        (5, 3, (9, 1)),
        (-1, 7, (9, 1)),
        (9, 2, (9, 2)),
    ):
        assert world.write(batch(start + 5, start + 5), start_offset=start, count=count).error == NONE
        assert progress() == expected
        world.move()
        assert progress() == expected
    assert min(row[0] for row in rows(world.read())) >= 9


def test_reading_again_in_the_same_epoch_costs_no_record() -> None:
    world = ShareWorld()
    world.initialize()
    world.read(leader_epoch=3)
    length = len(world.log)
    assert world.read(leader_epoch=3).error == NONE
    assert len(world.log) == length


def test_a_state_that_began_again_is_written_in_its_epoch_only() -> None:
    world = ShareWorld()
    world.initialize(1)
    world.write(batch(0, 9), start_offset=0)
    assert world.initialize(2, start_offset=5).error == NONE
    assert world.write(batch(0, 9)).error == ErrorCode.FENCED_STATE_EPOCH
    assert world.initialize(1).error == ErrorCode.FENCED_STATE_EPOCH
    read = world.read(leader_epoch=0)
    assert (read.response.state_epoch, read.response.start_offset, rows(read)) == (2, 5, [])
    assert world.summarize().response.delivery_complete_count == 0


def test_beginning_again_in_the_same_epoch_changes_nothing() -> None:
    """A group coordinator that doesn't know whether it has begun a state asks again."""
    world = ShareWorld()
    world.initialize(1)
    world.write(batch(0, 9), start_offset=0)
    assert world.initialize(1).error == NONE
    assert rows(world.read()) == [(0, 9, 2, 1)]


def test_only_partitions_that_there_are_have_a_state() -> None:
    world = ShareWorld()
    for place, error in (
        (SharePlace("g", TOPIC, 4), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (SharePlace("g", b"\2" * 16, 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (SharePlace("g", TOPIC, -1), ErrorCode.INVALID_REQUEST),
    ):
        assert world.initialize(place=place).error == world.summarize(place=place).error == error
    assert world.delete(SharePlace("g", TOPIC, -1)).error == ErrorCode.INVALID_REQUEST
    world.initialize()
    world.partitions.clear()
    assert world.read().error == world.write().error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_batch_must_be_a_range() -> None:
    world = ShareWorld()
    world.initialize()
    assert world.write(batch(3, 2)).error == world.write(batch(-1, 2)).error == ErrorCode.INVALID_REQUEST


def test_a_deleted_state_is_gone_and_may_begin_again() -> None:
    world = ShareWorld()
    world.initialize(3)
    assert world.delete().error == world.delete().error == NONE
    assert world.state.count == 0
    assert world.summarize().response.start_offset == -1
    world.move()
    assert world.state.count == 0
    assert world.initialize(1).error == NONE


def test_states_of_deleted_topics_go() -> None:
    world = ShareWorld()
    other = SharePlace("g", b"\2" * 16, 0)
    world.partitions[other.topic_id] = 1
    world.initialize()
    world.initialize(place=other)
    world.decide(lambda effects: world.state.forget_topics({TOPIC}, effects))
    assert list(world.state.states) == [other]


def test_nothing_is_answered_that_may_be_lost() -> None:
    """Neither to the writer, nor to a reader of what was written."""
    world = ShareWorld()
    world.initialize()
    world.holds_back = True
    written, read, summary = world.write(batch(0, 4), start_offset=0), world.read(), world.summarize()
    assert written.response is read.response is summary.response is None
    world.commit()
    assert (written.error, read.error, summary.error) == (NONE, NONE, NONE)
    world.holds_back = True
    lost = world.write(batch(5, 9))
    world.move()
    assert lost.error == ErrorCode.NOT_COORDINATOR
    assert rows(world.read()) == [(0, 4, 2, 1)]


def test_after_so_many_updates_comes_a_snapshot() -> None:
    world = ShareWorld(ShareSettings(updates_per_snapshot=3))
    world.initialize()
    for number in range(10):
        world.write(batch(number, number), start_offset=0)
    snapshots = [offset for offset, (key, _) in enumerate(world.log) if key[:2] == b"\0\0"]
    assert snapshots == [0, 4, 8]
    assert world.state.states[PLACE].snapshot_epoch == 2
    world.move()
    assert rows(world.read()) == [(0, 9, 2, 1)]


def test_the_log_is_cut_before_the_oldest_snapshot_that_is_needed() -> None:
    world = ShareWorld(ShareSettings(updates_per_snapshot=2))
    other = SharePlace("g", TOPIC, 1)
    world.initialize()
    world.initialize(place=other)
    for number in range(12):
        world.write(batch(number, number), start_offset=0)
    world.run_timers(100_000)
    assert world.log_start == 0
    world.run_timers(250_000)
    assert world.log_start == 1, "the other one's snapshot is the first record but one"
    world.run_timers(300_000)
    assert world.log_start > 1, "what doesn't change was written again"
    world.delete(other)
    world.delete()
    world.run_timers(300_000)
    assert world.log_start == len(world.log)


def test_nothing_is_cut_while_its_successor_may_be_lost() -> None:
    world = ShareWorld(ShareSettings(updates_per_snapshot=1))
    world.initialize()
    world.write(batch(0, 0), start_offset=0)
    world.holds_back = True
    world.write(batch(1, 1))
    world.run_timers(300_000)
    assert world.log_start == 0
    world.commit()
    assert world.log_start == 2


def test_a_quiet_coordinator_writes_nothing() -> None:
    world = ShareWorld()
    world.initialize()
    for _ in range(5):
        world.run_timers(300_000)
    length = len(world.log)
    assert length == 2, "once, and then no more"


def test_a_record_in_a_transaction_is_an_error() -> None:
    """None is ever written."""
    world = ShareWorld()
    world.initialize()
    for change in (InTransaction(7, ShareStateChange(PLACE, None)), EndMarker(7, is_commit=True)):
        with pytest.raises(ProtocolError):
            world.state.apply(change, 9)
    assert world.state.count == 1


def test_a_coordinator_that_another_has_followed_forgets_all() -> None:
    world = ShareWorld()
    world.initialize()
    world.state.on_unloaded(Effects(0, 0))
    assert world.state.count == 0


def test_nothing_is_answered_on_a_deletion_that_may_be_lost() -> None:
    world = ShareWorld()
    world.initialize()
    world.holds_back = True
    deleted, again, summary = world.delete(), world.delete(), world.summarize()
    assert deleted.response is again.response is summary.response is None
    world.commit()
    assert (deleted.error, again.error, summary.error) == (NONE, NONE, NONE)


def test_negative_epochs_are_refused() -> None:
    """As in Kafka 4.4. Only a summary, which fences nobody, may have none."""
    world = ShareWorld()
    assert world.initialize(-1).response.error_message == "The state epoch cannot be a negative number."
    world.initialize()
    answers = [world.read(leader_epoch=-1), world.write(leader_epoch=-1), world.write(state_epoch=-1)]
    assert [each.error for each in answers] == [ErrorCode.INVALID_REQUEST] * 3
    assert [each.response.error_message for each in answers] == [
        "The leader epoch cannot be a negative number.",
        "The leader epoch cannot be a negative number.",
        "The state epoch cannot be a negative number.",
    ]
    assert world.summarize(leader_epoch=-1).error == NONE


def test_the_first_thing_that_is_wrong_is_what_is_answered() -> None:
    """A replaced group coordinator or leader does not learn which topics are gone."""
    world = ShareWorld()
    world.initialize(5)
    world.read(leader_epoch=3)
    assert world.write(batch(3, 2), leader_epoch=2, state_epoch=4).error == ErrorCode.FENCED_LEADER_EPOCH
    assert world.write(batch(3, 2), leader_epoch=3, state_epoch=4).error == ErrorCode.FENCED_STATE_EPOCH
    assert world.write(batch(3, 2), leader_epoch=2, state_epoch=5).error == ErrorCode.FENCED_LEADER_EPOCH
    world.partitions.clear()
    assert world.initialize(4).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.write(leader_epoch=3, state_epoch=4).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_one_partition_of_the_topic_has_so_many_states_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_states, "STATES_MAX", 2)
    world = ShareWorld()
    places = [SharePlace("g", TOPIC, number) for number in (0, 1, 2, 7)]
    assert [world.initialize(place=place).error for place in places] == [
        NONE,
        NONE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert world.initialize(2).error == NONE, "those that are known may begin again"
    world.delete()
    assert world.initialize(place=places[2]).error == NONE


def test_snapshots_are_counted() -> None:
    world = ShareWorld()
    world.initialize(1)
    assert world.state.states[PLACE].snapshot_epoch == 0
    world.initialize(2)
    world.initialize(3)
    assert world.state.states[PLACE].snapshot_epoch == 2


def test_what_has_not_changed_for_an_interval_is_written_again_and_then_what_is_older() -> None:
    interval_ms = ShareSettings().cold_snapshot_interval_ms
    world = ShareWorld()
    other, newer = SharePlace("g", TOPIC, 1), SharePlace("g", TOPIC, 2)
    world.initialize()
    world.now_ms += 1
    world.initialize(place=other)
    world.run_timers(interval_ms - 1)
    assert [world.state.states[place].is_cold for place in (PLACE, other)] == [True, False]
    world.initialize(place=newer)
    world.run_timers(interval_ms)
    assert [world.state.states[place].is_cold for place in (PLACE, other, newer)] == [True, True, True]


def test_what_was_written_under_a_clock_that_was_ahead_is_written_again() -> None:
    """Otherwise its snapshot holds the log's start until that time has come."""
    interval_ms = ShareSettings().cold_snapshot_interval_ms
    world = ShareWorld()
    world.wall_offset_ms = 365 * 86_400_000
    world.initialize()
    world.wall_offset_ms = 0
    world.run_timers(interval_ms)
    assert world.state.states[PLACE].is_cold
