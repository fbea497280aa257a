"""The states of share groups: which are requested, again or for the first time, which are deleted, and the records."""

from __future__ import annotations

from typing import Any

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.share_group import InitializingTopic, KnownStates
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import ShareGroupChange, ShareRecordType
from lowtide.protocol.share_state_records import UNKNOWN_START
from tests.unit.broker.coordinator.group_world import GROUP, WALL_START_MS
from tests.unit.broker.coordinator.share_group_world import ShareGroupWorld

NONE = ErrorCode.NONE
OTHER = b"o" * 16
RETRY_MS = 10_000
YEAR_MS = 365 * 86_400_000


class Reply:
    response: Any = None


def waiting_world(**topics: int) -> ShareGroupWorld:
    """States begin only when a test says so."""
    settings = GroupSettings(share_assignment_interval_ms=0, share_initialize_retry_ms=RETRY_MS)
    world = ShareGroupWorld(settings, topics=topics or {"t": 4})
    world.begins = False
    return world


def set_states(world: ShareGroupWorld, states: KnownStates, group: str = GROUP) -> None:
    """A record says this of a group's states."""
    world.append(ShareGroupChange(ShareRecordType.STATES, group, "", states.record()))


def empty_world(states: KnownStates | None = None) -> ShareGroupWorld:
    """A group whose only member has left."""
    world = waiting_world()
    world.enter("a")
    world.beat("a", -1)
    if states is not None:
        set_states(world, states)
    return world


def ask(world: ShareGroupWorld, how: str, *arguments: Any) -> Any:
    """Carry out one of the methods of `ShareGroupStates`; returns what it has answered."""
    reply, effects = Reply(), world.effects()
    if how == "begin_deletion":
        world.groups.shares.states.begin_deletion(GROUP, reply, effects, *arguments)
    elif how == "initialize_again":
        world.groups.shares.states.initialize_again(GROUP, arguments[0], reply, effects)
    else:
        getattr(world.groups.shares.states, how)(*arguments, effects)
    world.carry_out(effects)
    return reply.response


# ------------------------------------------------------------------ states that begin
def test_topics_that_are_not_there_have_no_states() -> None:
    world = waiting_world(t=2)
    world.enter("a", "missing", "t")
    assert world.asked == [("g", 2, {world.ids(): [0, 1]})]


def test_only_what_has_no_state_is_asked_for() -> None:
    world = waiting_world(a=1, b=1, t=1)
    world.enter("m", "a")
    world.begin()
    world.beat("m", 2, "a", "b")
    assert world.asked[-1][2] == {world.ids("b"): [0]}
    world.beat("m", world.group.members["m"].member_epoch, "a", "b", "t")
    assert world.asked[-1][2] == {world.ids("t"): [0]}, "b was asked for a moment ago"


def test_partitions_that_a_topic_has_got_since_are_asked_for_at_once() -> None:
    world = waiting_world()
    world.enter("a")
    world.cluster.set_topic("t", 6)
    world.beat("a", 2)
    assert world.asked[-1][2] == {world.ids(): [0, 1, 2, 3, 4, 5]}
    assert world.group.states.initializing == {world.ids(): InitializingTopic("t", frozenset(range(6)), WALL_START_MS)}


LATEST, FIRST = UNKNOWN_START, 0


def starts(world: ShareGroupWorld, name: str = "t") -> dict[int, int]:
    """Where partitions were last asked to begin."""
    return dict(world.starts[-1][world.ids(name)])


def test_partitions_that_were_added_to_a_topic_begin_at_their_first_record() -> None:
    """Otherwise `latest` would skip records that are written before the group notices the partitions."""
    world = waiting_world(t=2)
    world.enter("a")
    assert starts(world) == {0: LATEST, 1: LATEST}
    world.begin()
    world.cluster.set_topic("t", 4)
    world.beat("a", 2)
    assert starts(world) == {2: FIRST, 3: FIRST}


def test_what_is_asked_for_again_begins_where_it_was_to_begin() -> None:
    """Some partitions were there from the start, others were added, and the share coordinator has not answered yet."""
    world = waiting_world(t=2)
    world.enter("a")
    world.cluster.set_topic("t", 3)
    world.beat("a", 2)
    wanted = {0: LATEST, 1: LATEST, 2: FIRST}
    assert starts(world) == wanted
    world.now_ms += RETRY_MS
    world.beat("a", world.group.members["a"].member_epoch)
    assert (len(world.starts), starts(world)) == (3, wanted)
    other = world.reload()
    assert isinstance(other, ShareGroupWorld)
    other.groups.shares.states.ports = other
    other.now_ms = world.now_ms + RETRY_MS
    other.beat("a", world.group.members["a"].member_epoch)
    assert starts(other) == wanted, "also after a move of the coordinator"


def test_what_was_asked_for_under_a_clock_that_was_ahead_is_asked_for_again() -> None:
    """The wall clock was a year ahead and is corrected; the coordinator moved before the request was carried out."""
    world = waiting_world(t=2)
    world.wall_offset_ms = YEAR_MS
    world.enter("a")
    world.wall_offset_ms = 0
    world.now_ms += RETRY_MS
    world.beat("a", world.group.members["a"].member_epoch)
    assert (len(world.starts), starts(world)) == (2, {0: LATEST, 1: LATEST})
    world.beat("a", world.group.members["a"].member_epoch)
    assert len(world.starts) == 2, "it was asked for a moment ago"


def test_a_group_that_had_no_members_begins_added_partitions_at_their_first_record() -> None:
    world = waiting_world(t=2)
    world.enter("a")
    world.begin()
    world.beat("a", -1)
    world.cluster.set_topic("t", 3)
    world.enter("b")
    assert starts(world) == {2: FIRST}


def test_a_topic_that_was_created_again_is_a_new_one() -> None:
    world = waiting_world(t=2)
    world.enter("a")
    world.begin()
    gone = world.ids()
    world.cluster.set_topic("t", 0)
    ask(world, "forget_topics", [gone])
    assert world.group.states == KnownStates()
    world.cluster.set_topic("t", 3)
    assert world.ids() != gone
    world.beat("a", world.group.members["a"].member_epoch)
    assert starts(world) == {0: LATEST, 1: LATEST, 2: LATEST}


def test_a_topic_that_the_group_has_forgotten_is_a_new_one() -> None:
    world = waiting_world(t=2)
    world.enter("a")
    world.begin()
    world.beat("a", -1)
    ask(world, "begin_deletion", [world.ids()])
    ask(world, "note_deleted", GROUP, [world.ids()])
    world.groups.shares.states.unlock(GROUP)
    world.cluster.set_topic("t", 3)
    world.enter("b")
    assert starts(world) == {0: LATEST, 1: LATEST, 2: LATEST}


def test_partitions_whose_starts_were_not_set_with_others_are_not_added_ones() -> None:
    """An administrator sets the start of one partition of a topic before the group is used."""
    world = waiting_world(t=3)
    assert ask(world, "initialize_again", {world.ids(): ("t", [0])}) == 2
    ask(world, "on_initialized", GROUP, {world.ids(): [0]})
    world.groups.shares.states.unlock(GROUP)
    world.cluster.set_topic("t", 4)
    world.enter("a")
    assert starts(world) == {1: LATEST, 2: LATEST, 3: FIRST}


def test_states_of_versions_that_did_not_note_the_count() -> None:
    world = empty_world(KnownStates(initialized={OTHER: ("o", frozenset({0}))}))
    set_states(world, KnownStates(initialized={world.ids(): ("t", frozenset({0, 1}))}))
    world.enter("b")
    assert starts(world) == {2: FIRST, 3: FIRST}, "those below the highest one that is known were there from the first"
    assert world.group.states.first_counts == {world.ids(): 2}


@pytest.mark.parametrize(("age_ms", "count"), [(RETRY_MS - 1, 1), (RETRY_MS, 2)])
def test_what_did_not_begin_is_asked_for_again_after_a_while(age_ms: int, count: int) -> None:
    world = waiting_world()
    world.enter("a")
    world.now_ms = age_ms
    world.beat("a", 2)
    assert len(world.asked) == count


def test_states_that_begin_again_are_not_about_to_end() -> None:
    world = empty_world()
    set_states(world, KnownStates(deleting={world.ids(): "t", OTHER: "o"}))
    world.enter("b")
    assert world.group.states.deleting == {OTHER: "o"}


@pytest.mark.parametrize("cause", ["append", "gone", "nowhere"])
def test_states_are_asked_for_only_when_that_is_kept_and_somewhere_to_ask(cause: str) -> None:
    world = waiting_world()
    world.enter("a", "missing")
    if cause == "append":
        world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    elif cause == "nowhere":
        world.groups.shares.states.ports = None
    world.holds_commits = cause == "gone"
    answer = world.beat("a", 2, "t")
    if cause == "gone":
        world.append(ShareGroupChange(ShareRecordType.GROUP, GROUP, "", None))
        world.commit()
    assert (answer.error == NONE, world.asked) == (cause != "append", [])


def test_what_has_begun_is_what_was_asked_for() -> None:
    world = waiting_world()
    world.enter("a")
    topic = world.ids()
    since_ms = world.group.states.initializing[topic].since_ms
    ask(world, "on_initialized", GROUP, {OTHER: [0], topic: [1, 0, 9]})
    assert world.group.states.initialized == {topic: ("t", frozenset({0, 1}))}
    assert world.group.states.initializing == {topic: InitializingTopic("t", frozenset({2, 3}), since_ms)}
    ask(world, "on_initialized", GROUP, {topic: [2, 3]})
    assert world.group.states == KnownStates(
        initialized={topic: ("t", frozenset({0, 1, 2, 3}))}, first_counts={topic: 4}
    )
    count = world.end_offset
    ask(world, "on_initialized", "gone", {topic: [0]})
    assert world.end_offset == count


# ------------------------------------------------------------------ states that end
def known(world: ShareGroupWorld) -> KnownStates:
    return KnownStates(
        initializing={b"1" * 16: InitializingTopic("one", frozenset({0}), 5)},
        initialized={b"2" * 16: ("two", frozenset({0, 1})), world.ids(): ("t", frozenset({0}))},
        deleting={OTHER: "o"},
    )


def test_all_states_of_a_group_end_or_those_of_some_topics() -> None:
    world = empty_world()
    set_states(world, known(world))
    assert ask(world, "begin_deletion", [b"2" * 16, b"9" * 16]) == world.group.group_epoch
    assert world.group.states == KnownStates(
        initializing={b"1" * 16: InitializingTopic("one", frozenset({0}), 5)},
        initialized={world.ids(): ("t", frozenset({0}))},
        deleting={OTHER: "o", b"2" * 16: "two"},
    )
    assert ask(world, "begin_deletion", None) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.groups.shares.states.unlock(GROUP)
    world.groups.shares.states.unlock("gone")
    assert ask(world, "begin_deletion", None) == 3
    assert world.group.states == KnownStates(
        deleting={OTHER: "o", b"2" * 16: "two", b"1" * 16: "one", world.ids(): "t"}
    )


def test_states_of_a_group_with_members_do_not_end() -> None:
    world = waiting_world()
    assert ask(world, "begin_deletion", None) == ErrorCode.GROUP_ID_NOT_FOUND
    world.enter("a")
    assert ask(world, "begin_deletion", None) == ErrorCode.NON_EMPTY_GROUP
    assert not world.group.is_deleting


def test_a_group_whose_deletion_could_not_be_kept_takes_members_again() -> None:
    world = empty_world()
    world.append_fails = ErrorCode.NOT_ENOUGH_REPLICAS
    assert ask(world, "begin_deletion", None) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.append_fails = None
    assert not world.group.is_deleting
    world.enter("b")


def test_a_deletion_that_fails_after_the_group_is_gone_changes_nothing() -> None:
    world = empty_world()
    world.holds_commits = True
    reply, effects = Reply(), world.effects()
    world.groups.shares.states.begin_deletion(GROUP, reply, effects)
    world.carry_out(effects)
    world.append(ShareGroupChange(ShareRecordType.GROUP, GROUP, "", None))
    world.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert (reply.response, world.groups.by_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, {})


def test_a_group_that_begins_again_does_so_in_a_later_epoch() -> None:
    world = empty_world()
    set_states(world, KnownStates(deleting={world.ids(): "t", OTHER: "o"}))
    epoch, hashed = world.group.group_epoch, world.group.metadata_hash
    assert ask(world, "initialize_again", {world.ids(): ("t", [1])}) == epoch + 1
    assert (world.group.group_epoch, world.group.metadata_hash) == (epoch + 1, hashed)
    assert world.group.states.deleting == {OTHER: "o"}
    assert world.group.states.initializing == {world.ids(): InitializingTopic("t", frozenset({1}), WALL_START_MS)}
    world.groups.shares.states.unlock(GROUP)
    ask(world, "initialize_again", {world.ids(): ("t", [3])})
    assert world.group.states.initializing[world.ids()].partitions == {1, 3}


def test_states_that_have_ended_are_forgotten() -> None:
    world = empty_world(KnownStates(deleting={OTHER: "o", b"2" * 16: "two"}))
    count = world.end_offset
    ask(world, "note_deleted", GROUP, [])
    ask(world, "note_deleted", "gone", [OTHER])
    assert world.end_offset == count
    ask(world, "note_deleted", GROUP, [OTHER])
    assert world.group.states == KnownStates(deleting={b"2" * 16: "two"})


@pytest.mark.parametrize("gone", [b"1" * 16, b"2" * 16, OTHER])
def test_states_of_topics_that_are_gone_are_forgotten_in_all_groups(gone: bytes) -> None:
    world = empty_world()
    states = known(world)
    world.join(group="classic")
    world.beat("x", 0, "t", group="third")
    group = world.groups.by_id.pop(GROUP)
    world.groups.by_id[GROUP] = group
    set_states(world, KnownStates(), "third")
    set_states(world, states)
    count = world.end_offset
    ask(world, "forget_topics", [b"9" * 16])
    assert world.end_offset == count
    ask(world, "forget_topics", [gone])
    assert world.end_offset == count + 1
    assert world.group.states == KnownStates(
        initializing={topic: row for topic, row in states.initializing.items() if topic != gone},
        initialized={topic: row for topic, row in states.initialized.items() if topic != gone},
        deleting={topic: row for topic, row in states.deleting.items() if topic != gone},
    )
