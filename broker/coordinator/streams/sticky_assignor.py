"""Assigns the tasks of a streams group: tasks stay where they were, as far as the load stays even.

Pure and deterministic: nothing depends on the order of a mapping.

1. An active task goes to the member that had it, then to one that has its state, and else to the process with the least
   load. The load of a process is its number of tasks divided by its number of members.
2. Each stateful task gets standby tasks on other processes: where the task or a standby was, then on the process with
   the least load. If there are too few processes, it gets fewer.

Guards: each task has one active owner. No process has a task twice. No member has more than one active task above the
average.

Does not: assign warm-up tasks, as Kafka 4.4 doesn't. Its `AssignmentRefiner` returns the assignment unchanged, so
`num_warmup_replicas`, the acceptable recovery lag and end offsets are not looked at, nor are racks and tags.

Cost: O(n log n) in tasks with their standbys, members, and task offsets that members reported.

Departure: among processes with equal load Kafka takes any. Here it is the one with the least loaded member, then the
first by id.

Source: KIP-1071; Kafka's `StickyTaskAssignor`, `ProcessState`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS, TaskId, Tasks, by_subtopology
from lowtide.broker.coordinator.streams.topology import ConfiguredTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member as the assignor sees it."""

    process_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    current: Tasks = EMPTY_TASKS
    """Its part of the last target."""
    task_offsets: Mapping[TaskId, int] = field(default_factory=dict)
    """The sum of the changelog offsets of each task whose state it has."""
    task_end_offsets: Mapping[TaskId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """The members by id, and the group's settings."""

    members: Mapping[str, MemberSpec]
    num_standby_replicas: int = 0
    num_warmup_replicas: int = 0
    rack_aware_tags: tuple[str, ...] = ()


def assign(spec: GroupSpec, topology: ConfiguredTopology) -> dict[str, Tasks]:
    """Returns the tasks of each member, by member id in order. Without members or subtopologies there are none."""
    subtopologies = topology.subtopologies or {}
    tasks = [(name, number) for name in sorted(subtopologies) for number in range(subtopologies[name].number_of_tasks)]
    if not spec.members:
        return {}
    assignment = _Assignment(spec, tasks)
    stateful = [task for task in tasks if subtopologies[task[0]].is_stateful]
    replicas = min(spec.num_standby_replicas, len(assignment.processes) - 1)
    assignment.active_quota = _Quota(len(tasks), len(spec.members))
    assignment.quota = _Quota(len(tasks) + len(stateful) * max(spec.num_standby_replicas, 0), len(spec.members))
    assignment.assign_active(tasks)
    if replicas > 0:
        assignment.assign_standby(stateful, replicas)
    return assignment.by_member()


class _Quota:
    """How many tasks a member may keep: the average, rounded up, of what the members below the quota can have."""

    __slots__ = ("_members", "_tasks", "most")

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.most = -(-tasks // members)

    def count(self, load: int) -> None:
        """Takes a member out of the average when its load reaches the quota."""
        if load == self.most:
            self._members -= 1
            self._tasks -= load
            self.most = -(-self._tasks // self._members) if self._members else 0


class _Candidate(NamedTuple):
    """A member that has the state of a task. The first in order is the best."""

    had_no_standby: bool
    lag: int
    """Minus the sum of its offsets."""
    place: int


class _TaskMember:
    """A member and what it has got."""

    __slots__ = ("active", "load", "member_id", "process", "standby")

    def __init__(self, member_id: str, process: _TaskProcess) -> None:
        self.member_id = member_id
        self.process = process
        self.active: list[TaskId] = []
        self.standby: list[TaskId] = []
        self.load = 0


class _TaskProcess:
    """A process, and the tasks of its members."""

    __slots__ = ("_heap", "members", "place", "tasks")

    def __init__(self, place: int) -> None:
        self.place = place
        self.members: list[_TaskMember] = []
        self.tasks: set[TaskId] = set()
        self._heap: list[tuple[int, int]] = []

    @property
    def load(self) -> float:
        """The tasks for each member."""
        return len(self.tasks) / len(self.members)

    def order_members(self) -> None:
        """Orders the members by load, after tasks were given to some of them."""
        self._heap = [(member.load, number) for number, member in enumerate(self.members)]
        heapq.heapify(self._heap)

    def place_in_heap(self) -> tuple[float, int, int]:
        """Returns the place of the process in a heap."""
        return self.load, self._heap[0][0], self.place

    def least_loaded(self) -> _TaskMember:
        """Returns the member with the least load, which gets a task."""
        load, number = self._heap[0]
        heapq.heapreplace(self._heap, (load + 1, number))
        return self.members[number]


class _Assignment:
    """One run of the assignor."""

    def __init__(self, spec: GroupSpec, tasks: Iterable[TaskId]) -> None:
        self.active_quota = self.quota = _Quota(0, 1)
        by_id: dict[str, _TaskProcess] = {}
        for process_id in sorted({member.process_id for member in spec.members.values()}):
            by_id[process_id] = _TaskProcess(len(by_id))
        self.processes = list(by_id.values())
        self._members: list[_TaskMember] = []
        self._had_active: dict[TaskId, _TaskMember] = {}
        self._candidates: dict[TaskId, list[_Candidate]] = {task: [] for task in tasks}
        """The members with the state of each task, the best first."""
        for place, member_id in enumerate(sorted(spec.members)):
            row = spec.members[member_id]
            process = by_id[row.process_id]
            member = _TaskMember(member_id, process)
            process.members.append(member)
            self._members.append(member)
            for task in _ids(row.current.active):
                self._had_active.setdefault(task, member)
            self._note_state(row, place)
        for found in self._candidates.values():
            found.sort()

    def _note_state(self, row: MemberSpec, place: int) -> None:
        standby = set(_ids(row.current.standby))
        for task in standby:
            if task in self._candidates:
                self._candidates[task].append(_Candidate(False, -row.task_offsets.get(task, 0), place))
        for task, offset in row.task_offsets.items():
            if task not in standby and task in self._candidates:
                self._candidates[task].append(_Candidate(True, -offset, place))

    # ------------------------------------------------------------------ active tasks
    def assign_active(self, tasks: Iterable[TaskId]) -> None:
        """Gives each task one owner."""
        left = []
        for task in sorted(tasks, key=_by_partition):
            member = self._had_active.get(task)
            if member is not None and member.load < self.active_quota.most:
                self._give_active(member, task)
            else:
                left.append(task)
        rest = []
        for task in left:
            member = self._least_loaded_candidate(task)
            if member is not None and member.load < self.active_quota.most:
                self._give_active(member, task)
            else:
                rest.append(task)
        heap = self._process_heap()
        for task in sorted(rest):
            process = self.processes[heap[0][-1]]
            self._give_active(process.least_loaded(), task)
            heapq.heapreplace(heap, process.place_in_heap())

    def _give_active(self, member: _TaskMember, task: TaskId) -> None:
        member.active.append(task)
        member.process.tasks.add(task)
        member.load += 1
        self.active_quota.count(member.load)
        self.quota.count(member.load)

    # ------------------------------------------------------------------ standby tasks
    def assign_standby(self, tasks: Iterable[TaskId], replicas: int) -> None:
        """Gives each task standbys on as many other processes; `replicas` is less than the number of processes."""
        left: list[tuple[TaskId, int]] = []
        for task in sorted(tasks, key=_by_partition, reverse=True):
            for given in range(replicas):
                member = self._keeper(task)
                if member is None:
                    left.append((task, replicas - given))
                    break
                self._give_standby(member, task)
        heap = self._process_heap()
        for task, count in sorted(left, reverse=True):
            self._spread(heap, task, count)

    def _keeper(self, task: TaskId) -> _TaskMember | None:
        """Returns a member that had the task or a standby and may have one more."""
        member = self._had_active.get(task)
        if member is not None and task not in member.process.tasks and member.load < self.quota.most:
            return member
        member = self._least_loaded_candidate(task, is_standby=True)
        return member if member is not None and member.load < self.quota.most else None

    def _spread(self, heap: list[tuple[float, int, int]], task: TaskId, count: int) -> None:
        """Gives standbys to the processes with the least load that don't have the task."""
        taken = []
        while count and heap:
            process = self.processes[heapq.heappop(heap)[-1]]
            taken.append(process)
            if task not in process.tasks:
                self._give_standby(process.least_loaded(), task)
                count -= 1
        for process in taken:
            heapq.heappush(heap, process.place_in_heap())

    def _give_standby(self, member: _TaskMember, task: TaskId) -> None:
        member.standby.append(task)
        member.process.tasks.add(task)
        member.load += 1
        self.quota.count(member.load)

    # ------------------------------------------------------------------ members and processes
    def _least_loaded_candidate(self, task: TaskId, *, is_standby: bool = False) -> _TaskMember | None:
        """Returns the best member with the state of a task. Another replaces it if process and member have less load.

        A standby is not given to a process that has the task.
        """
        found: _TaskMember | None = None
        for candidate in self._candidates[task]:
            member = self._members[candidate.place]
            if is_standby and task in member.process.tasks:
                continue
            if found is None or (member.process.load < found.process.load and member.load < found.load):
                found = member
        return found

    def _process_heap(self) -> list[tuple[float, int, int]]:
        for process in self.processes:
            process.order_members()
        heap = [process.place_in_heap() for process in self.processes]
        heapq.heapify(heap)
        return heap

    def by_member(self) -> dict[str, Tasks]:
        """Returns the tasks of each member."""
        return {
            member.member_id: Tasks(active=by_subtopology(member.active), standby=by_subtopology(member.standby))
            for member in self._members
        }


def _ids(tasks: Mapping[str, frozenset[int]]) -> Iterator[TaskId]:
    return ((name, number) for name, numbers in tasks.items() for number in numbers)


def _by_partition(task: TaskId) -> tuple[int, str]:
    return task[1], task[0]
