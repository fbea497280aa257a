"""Each task has one active owner, the load is even, standbys are elsewhere, and no task moves without need."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.broker.coordinator.streams.sticky_assignor import GroupSpec, MemberSpec, assign
from lowtide.broker.coordinator.streams.tasks import TaskId, Tasks, by_subtopology
from lowtide.broker.coordinator.streams.topology import (
    ConfiguredSubtopology,
    ConfiguredTopology,
    InternalTopicSpec,
)
from tests.examples import examples

some = settings(deadline=None, max_examples=examples(200))
Target = Mapping[str, Tasks]


def topology(**subtopologies: int) -> ConfiguredTopology:
    """Subtopologies with their numbers of tasks. Names that begin with `s` have state."""
    rows = {}
    for name, count in subtopologies.items():
        topic = f"{name}-changelog"
        changelogs = {topic: InternalTopicSpec(name=topic, partitions=count)} if name.startswith("s") else {}
        rows[name] = ConfiguredSubtopology(number_of_tasks=count, state_changelog_topics=changelogs)
    return ConfiguredTopology(topology_epoch=0, metadata_hash=0, subtopologies=rows)


def group(members: Mapping[str, str], standbys: int = 0, current: Target | None = None) -> GroupSpec:
    """Members with the process of each."""
    known = current or {}
    return GroupSpec(
        members={
            member_id: MemberSpec(process_id=process_id, current=known.get(member_id, Tasks()))
            for member_id, process_id in members.items()
        },
        num_standby_replicas=standbys,
    )


def ids(rows: Mapping[str, frozenset[int]]) -> list[TaskId]:
    return [(name, number) for name, numbers in rows.items() for number in numbers]


def tasks(*active: TaskId, standby: Iterable[TaskId] = ()) -> Tasks:
    return Tasks(active=by_subtopology(active), standby=by_subtopology(standby))


def owners(target: Target) -> dict[TaskId, str]:
    return {task: member_id for member_id, row in target.items() for task in ids(row.active)}


def all_tasks(of: ConfiguredTopology, *, only_stateful: bool = False) -> set[TaskId]:
    assert of.subtopologies is not None
    return {
        (name, number)
        for name, row in of.subtopologies.items()
        for number in range(row.number_of_tasks)
        if row.is_stateful or not only_stateful
    }


def standbys_of(target: Target) -> Counter[TaskId]:
    return Counter(task for row in target.values() for task in ids(row.standby))


# ---------------------------------------------------------------------- any group
member_ids = st.sampled_from("abcdefgh")
processes = st.dictionaries(member_ids, st.sampled_from("PQRS"), min_size=1)
topologies = st.builds(topology, n0=st.integers(1, 9), s1=st.integers(1, 9), s2=st.integers(1, 5))
claimed = st.frozensets(st.tuples(st.sampled_from(["n0", "s1", "s2", "gone"]), st.integers(0, 10)))


@st.composite
def groups(draw: st.DrawFn) -> GroupSpec:
    """Members may claim anything: tasks that others claim too, that do not exist, or have offsets of any task."""
    members = {}
    for member_id, process_id in draw(processes).items():
        active, standby = draw(claimed), draw(claimed)
        offsets = draw(
            st.dictionaries(st.tuples(st.sampled_from(["s1", "gone"]), st.integers(0, 10)), st.integers(0, 9))
        )
        members[member_id] = MemberSpec(
            process_id=process_id, current=tasks(*active, standby=standby), task_offsets=offsets
        )
    return GroupSpec(members=members, num_standby_replicas=draw(st.integers(0, 3)))


@some
@given(groups(), topologies)
def test_each_task_has_one_active_owner(spec: GroupSpec, of: ConfiguredTopology) -> None:
    target = assign(spec, of)
    assert target.keys() == spec.members.keys()
    assert Counter(task for row in target.values() for task in ids(row.active)) == Counter(all_tasks(of))
    assert not any(row.warmup for row in target.values())


@some
@given(groups(), topologies)
def test_no_member_has_more_than_one_active_task_above_the_average(spec: GroupSpec, of: ConfiguredTopology) -> None:
    loads = Counter(owners(assign(spec, of)).values())
    average = len(all_tasks(of)) // len(spec.members)
    assert max(loads.values()) <= average + 1
    for process_id, capacity in Counter(member.process_id for member in spec.members.values()).items():
        load = sum(loads[name] for name, member in spec.members.items() if member.process_id == process_id)
        assert load <= capacity * (average + 1)


@some
@given(groups(), topologies)
def test_tasks_with_state_have_standbys_on_other_processes(spec: GroupSpec, of: ConfiguredTopology) -> None:
    target = assign(spec, of)
    by_process = Counter(
        (spec.members[member_id].process_id, task)
        for member_id, row in target.items()
        for task in (*ids(row.active), *ids(row.standby))
    )
    assert max(by_process.values()) == 1, "a process has a task twice"
    others = len({member.process_id for member in spec.members.values()}) - 1
    count = min(spec.num_standby_replicas, others)
    expected = dict.fromkeys(all_tasks(of, only_stateful=True), count) if count else {}
    assert standbys_of(target) == Counter(expected)


@some
@given(groups(), topologies, st.randoms(use_true_random=False))
def test_the_order_of_members_does_not_matter(spec: GroupSpec, of: ConfiguredTopology, random: object) -> None:
    rows = list(spec.members.items())
    random.shuffle(rows)  # type: ignore[attr-defined]  # a `random.Random`
    assert assign(replace(spec, members=dict(rows)), of) == assign(spec, of)


@some
@given(processes, topologies)
def test_nothing_moves_if_nothing_changes(members: dict[str, str], of: ConfiguredTopology) -> None:
    first = assign(group(members), of)
    assert assign(group(members, current=first), of) == first


@some
@given(st.sets(member_ids, min_size=2), topologies, st.integers(1, 2))
def test_standbys_stay_if_nothing_changes(members: set[str], of: ConfiguredTopology, standbys: int) -> None:
    alone = {member_id: f"process-{member_id}" for member_id in members}
    first = assign(group(alone, standbys), of)
    again = assign(group(alone, standbys, first), of)
    assert owners(again) == owners(first)


@some
@given(st.sets(member_ids, min_size=2), topologies)
def test_of_a_member_that_left_only_its_own_tasks_move(members: set[str], of: ConfiguredTopology) -> None:
    alone = {member_id: f"process-{member_id}" for member_id in members}
    first = assign(group(alone), of)
    gone = min(alone)
    del alone[gone]
    after = owners(assign(group(alone, current=first), of))
    assert {task for task, name in owners(first).items() if after[task] != name} == set(ids(first[gone].active))


@some
@given(st.sets(member_ids, min_size=1, max_size=7), topologies)
def test_a_member_that_joins_gets_its_share_and_nothing_else_moves(members: set[str], of: ConfiguredTopology) -> None:
    alone = {member_id: f"process-{member_id}" for member_id in members}
    first = owners(assign(group(alone), of))
    current = assign(group(alone), of)
    after = owners(assign(group(alone | {"new": "process-new"}, current=current), of))
    moved = {task for task in first if after[task] != first[task]}
    assert {after[task] for task in moved} <= {"new"}
    assert len(moved) >= len(first) // (len(members) + 1)


# ---------------------------------------------------------------------- by example
def test_a_task_goes_to_the_standby_of_the_member_that_left() -> None:
    current = {"b": tasks(("s1", 1)), "c": tasks(("s1", 2), standby=[("s1", 0)])}
    target = assign(group({"b": "B", "c": "C"}, 1, current), topology(s1=3))
    assert owners(target) == {("s1", 0): "c", ("s1", 1): "b", ("s1", 2): "c"}


def test_of_several_members_with_state_the_furthest_gets_the_task() -> None:
    def with_offset(offset: int | None) -> MemberSpec:
        offsets = {} if offset is None else {("s1", 0): offset}
        return MemberSpec(process_id=f"P{offset}", task_offsets=offsets)

    spec = GroupSpec(members={"a": with_offset(None), "b": with_offset(5), "c": with_offset(9)})
    assert owners(assign(spec, topology(s1=1))) == {("s1", 0): "c"}


def test_a_standby_comes_before_a_member_with_more_state() -> None:
    members = {
        "a": MemberSpec(process_id="A", task_offsets={("s1", 0): 9}),
        "b": MemberSpec(process_id="B", current=tasks(standby=[("s1", 0)]), task_offsets={("s1", 0): 3}),
    }
    assert owners(assign(GroupSpec(members=members), topology(s1=1))) == {("s1", 0): "b"}


def test_the_load_counts_by_members_of_a_process() -> None:
    loads = Counter(owners(assign(group({"a": "P", "b": "P", "c": "Q"}), topology(n0=6))).values())
    assert loads == {"a": 2, "b": 2, "c": 2}


def test_a_standby_stays_where_the_task_was() -> None:
    current = {"a": tasks(*(("s1", number) for number in range(4)))}
    target = assign(group({"a": "A", "b": "B"}, 1, current), topology(s1=4))
    moved = ids(target["b"].active)
    assert len(moved) == 2
    assert set(moved) <= set(ids(target["a"].standby))


def test_without_members_or_tasks_there_is_nothing_to_assign() -> None:
    assert assign(group({}), topology(s1=1)) == {}
    assert assign(group({"a": "A"}), topology()) == {"a": Tasks()}


# ---------------------------------------------------------------------- bounds
def calls_made(spec: GroupSpec, of: ConfiguredTopology) -> int:
    """Returns how many calls of functions, built-in ones included, an assignment takes."""
    count = 0

    def on_event(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(on_event)
    try:
        assign(spec, of)
    finally:
        sys.setprofile(None)
    return count


def test_large_groups_cost_in_proportion() -> None:
    """Each of the 10,000 tasks and their 20,000 standbys takes a few steps, whatever the number of members is."""
    members = {f"member-{number}": f"process-{number // 2}" for number in range(500)}
    of = topology(s1=5_000, s2=5_000)
    most = 50 * 30_000
    assert calls_made(group(members, 2), of) < most
    first = assign(group(members, 2), of)
    del members["member-0"]
    assert calls_made(group(members, 2, first), of) < most
