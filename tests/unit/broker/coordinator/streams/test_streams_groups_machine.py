"""Random members of a streams group: they join, crash, fall silent, leave and miss answers, and coordinators change.

Two properties, for each seed: no two members that could still commit have the same active task, and soon after the
last event every task has exactly one owner. `SEEDS=1000` tries more.
"""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest

from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.group_world import GROUP
from tests.unit.broker.coordinator.streams_world import StreamsWorld, subtopology, tasks, topology

SEEDS: Final = int(os.environ.get("SEEDS", "25"))
STEPS: Final = 60
PROCESSES: Final = 3
REJOINS: Final = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
SETTINGS: Final = GroupSettings(
    streams_assignment_interval_ms=500, streams_initial_rebalance_delay_ms=1_000, streams_num_standby_replicas=1
)


class Thread:
    """One member as a client has it."""

    def __init__(self, world: StreamsWorld, name: str, process: str) -> None:
        self.world, self.name, self.process = world, name, process
        self.epoch = 0
        self.roles: list[dict[str, set[int]]] = [{}, {}, {}]

    def beat(self, *, loses_answer: bool = False) -> None:
        """Reports what it has, and does at once what the answer says."""
        reported = [tasks({name: sorted(row) for name, row in role.items()}) for role in self.roles]
        roles: dict[str, Any] = dict(zip(("active_tasks", "standby_tasks", "warmup_tasks"), reported, strict=True))
        if self.epoch:
            answer = self.world.beat(self.name, self.epoch, **roles)
        else:
            rows = topology(subtopology("0", "t"), subtopology("1", "t", changelogs=("c",)))
            answer = self.world.joining(self.name, process_id=self.process, topology=rows)
        if loses_answer:
            return
        if answer.error in REJOINS:
            self.forget()
            return
        assert answer.error == ErrorCode.NONE, (answer.error, answer.response.error_message)
        self.epoch = answer.response.member_epoch
        given = answer.response.active_tasks, answer.response.standby_tasks, answer.response.warmup_tasks
        if given[0] is not None:
            self.roles = [{row.subtopology_id: set(row.partitions) for row in role} for role in given]

    def forget(self) -> None:
        """It was fenced: it closes its tasks and joins again."""
        self.epoch, self.roles = 0, [{}, {}, {}]

    def may_commit(self) -> bool:
        """Whether the coordinator would take its commits."""
        group = self.world.groups.streams.find(GROUP)
        return group is not None and group.check_commit(self.name, self.epoch, 9, []) == ErrorCode.NONE


class Application:
    """The threads of an application, some of them alive."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = StreamsWorld(SETTINGS, topics={"t": 4, "c": 4})
        self.alive: list[Thread] = []
        self.count = 0

    def step(self) -> None:
        """One event, and then a little time."""
        event = self.random.random()
        if event < 0.12 or not self.alive:
            self.count += 1
            process = f"p{self.random.randrange(PROCESSES)}"
            self.alive.append(Thread(self.world, f"m{self.count}", process))
        elif event < 0.18:
            self.alive.remove(self.random.choice(self.alive))
        elif event < 0.24:
            gone = self.random.choice(self.alive)
            self.alive.remove(gone)
            if gone.epoch:
                self.world.beat(gone.name, -1)
        elif event < 0.3:
            self.fail_over()
        else:
            thread = self.random.choice(self.alive)
            thread.beat(loses_answer=thread.epoch > 0 and event < 0.36)
        self.world.pass_time(self.random.choice((0, 0, 200, 1_000, 20_000)))
        self.check()

    def fail_over(self) -> None:
        """Another broker loads the group."""
        loaded = self.world.reload()
        self.world.groups = loaded.groups

    def check(self) -> None:
        owners: dict[tuple[str, int], str] = {}
        for thread in self.alive:
            if thread.epoch and thread.may_commit():
                for name, numbers in thread.roles[0].items():
                    for number in numbers:
                        other = owners.setdefault((name, number), thread.name)
                        assert other == thread.name, f"{name}_{number} has two owners: {other} and {thread.name}"

    def settle(self) -> None:
        """Nothing happens any more but heartbeats, until silent members are gone."""
        if not self.alive:
            self.step()
        for _ in range(30):
            self.world.pass_time(5_000)
            for thread in self.alive:
                thread.beat()
                self.check()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_task_has_one_owner(seed: int) -> None:
    application = Application(seed)
    for _ in range(STEPS):
        application.step()
    while not application.alive:
        application.step()
    application.settle()
    active = [(name, number) for thread in application.alive for name, row in thread.roles[0].items() for number in row]
    assert sorted(active) == [(name, number) for name in ("0", "1") for number in range(4)]
    copies = [
        (thread.process, name, number)
        for thread in application.alive
        for role in thread.roles
        for name, row in role.items()
        for number in row
    ]
    assert len(copies) == len(set(copies)), "a process has a task twice"
