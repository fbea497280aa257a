"""The processes that have each task of a streams group, or may still have it.

Guards: an active task has one owner at most; `task_reconciliation` assigns it only after others have released it.

Source: Kafka's `StreamsGroup.currentActiveTaskToProcessId` and its likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from lowtide.broker.coordinator.streams.streams_member import StreamsThreadMember
from lowtide.broker.coordinator.streams.tasks import TaskId

_Copies: TypeAlias = dict[TaskId, dict[str, int]]
"""Task → process → the number of its members that have the task."""


class TaskOwners:
    """The owners of one group's tasks. They follow the members' records."""

    __slots__ = ("_active", "_standby", "_warmup")

    def __init__(self) -> None:
        self._active: dict[TaskId, tuple[str, str]] = {}
        """Task → process and member."""
        self._standby: _Copies = {}
        self._warmup: _Copies = {}

    def active_process(self, subtopology: str, partition: int) -> str | None:
        """Returns the process with an active task; None if there is none."""
        owner = self._active.get((subtopology, partition))
        return None if owner is None else owner[0]

    def has_standby(self, subtopology: str, partition: int, process_id: str) -> bool:
        """Returns whether a process has a standby task."""
        return process_id in self._standby.get((subtopology, partition), ())

    def has_warmup(self, subtopology: str, partition: int, process_id: str) -> bool:
        """Returns whether a process has a warm-up task."""
        return process_id in self._warmup.get((subtopology, partition), ())

    def on_changed(self, old: StreamsThreadMember | None, new: StreamsThreadMember | None) -> None:
        """Takes over a member that changes, joins (`old` is None) or leaves (`new` is None)."""
        if old is not None:
            self._release(old)
        if new is not None:
            self._take(new)

    def _take(self, member: StreamsThreadMember) -> None:
        owner = member.process_id, member.member_id
        for tasks in (member.assigned, member.revoking):
            for task in _ids(tasks.active):
                self._active[task] = owner
            for copies, replicas in ((self._standby, tasks.standby), (self._warmup, tasks.warmup)):
                for task in _ids(replicas):
                    counts = copies.setdefault(task, {})
                    counts[member.process_id] = counts.get(member.process_id, 0) + 1

    def _release(self, member: StreamsThreadMember) -> None:
        """Releases a member's tasks, unless another member has got them since."""
        owner = member.process_id, member.member_id
        for tasks in (member.assigned, member.revoking):
            for task in _ids(tasks.active):
                if self._active.get(task) == owner:
                    del self._active[task]
            for copies, replicas in ((self._standby, tasks.standby), (self._warmup, tasks.warmup)):
                for task in _ids(replicas):
                    counts = copies[task]
                    counts[member.process_id] -= 1
                    if not counts[member.process_id]:
                        del counts[member.process_id]
                    if not counts:
                        del copies[task]


def _ids(tasks: Mapping[str, Iterable[int]]) -> Iterable[TaskId]:
    return ((name, number) for name, numbers in tasks.items() for number in numbers)
