"""Moves a member towards its target as Kafka's `CurrentAssignmentBuilder` does.

`reconciliations.json` has outcomes of Kafka 4.4.0's class for random members of process P, targets, reports and other
members of processes P and Q.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.streams.streams_member import NO_TASKS, AssignedTasks, StreamsThreadMember
from lowtide.broker.coordinator.streams.task_owners import TaskOwners
from lowtide.broker.coordinator.streams.task_reconciliation import TaskReconciliation, reconcile_tasks
from lowtide.broker.coordinator.streams.tasks import EMPTY_TASKS, Tasks

ROWS: Final = json.loads(Path(__file__).with_name("reconciliations.json").read_text(encoding="utf-8"))
STATES: Final = {
    1: MemberState.STABLE,
    2: MemberState.UNREVOKED_PARTITIONS,
    3: MemberState.UNRELEASED_PARTITIONS,
    127: MemberState.UNKNOWN,
}


def sets(tasks: dict[str, list[int]]) -> dict[str, frozenset[int]]:
    return {name: frozenset(numbers) for name, numbers in tasks.items()}


def assigned(roles: list[Any]) -> AssignedTasks:
    active = {name: {int(number): epoch for number, epoch in epochs.items()} for name, epochs in roles[0].items()}
    return AssignedTasks(active, sets(roles[1]), sets(roles[2]))


def tasks(roles: list[Any] | None) -> Tasks | None:
    return None if roles is None else Tasks(active=sets(roles[0]), standby=sets(roles[1]), warmup=sets(roles[2]))


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_a_member_moves_as_in_kafka(row: dict[str, Any]) -> None:
    member = StreamsThreadMember(
        "m",
        process_id="P",
        member_epoch=row["epoch"],
        previous_epoch=row["epoch"] - 1,
        state=STATES[row["state"]],
        assigned=assigned(row["assigned"]),
        revoking=assigned(row["revoking"]),
    )
    owners = TaskOwners()
    owners.on_changed(None, member)
    for number, (process, active, standby, warmup) in enumerate(row["others"]):
        with_epochs = {name: dict.fromkeys(numbers, 1) for name, numbers in active.items()}
        other = StreamsThreadMember(
            f"o{number}", process_id=process, assigned=AssignedTasks(with_epochs, sets(standby), sets(warmup))
        )
        owners.on_changed(None, other)
    target = tasks(row["target"])
    assert target is not None
    after = reconcile_tasks(member, TaskReconciliation(row["target_epoch"], target, tasks(row["owned"]), owners))
    expected = row["after"]
    if expected is None:
        assert after is None
        return
    assert after is not None
    assert after == msgspec.structs.replace(
        member,
        state=STATES[expected["state"]],
        member_epoch=expected["epoch"],
        previous_epoch=expected["previous"],
        assigned=assigned(expected["assigned"]),
        revoking=assigned(expected["revoking"]),
    )


def test_revoking_never_raises_an_epoch_above_the_target() -> None:
    """Kafka's does, if a target of the member's own epoch takes more away; no epoch may be one that doesn't exist."""
    revoking = AssignedTasks({"0": {1: 5}})
    member = StreamsThreadMember(
        "m", member_epoch=10, state=MemberState.UNREVOKED_PARTITIONS, assigned=NO_TASKS, revoking=revoking
    )
    after = reconcile_tasks(member, TaskReconciliation(10, EMPTY_TASKS, EMPTY_TASKS, TaskOwners()))
    assert after is not None
    assert (after.member_epoch, after.state, after.revoking) == (10, MemberState.STABLE, NO_TASKS)


def test_two_members_of_a_process_count_twice() -> None:
    """The process has the task until the last of them releases it."""
    owners, standby = TaskOwners(), AssignedTasks(standby={"0": frozenset({1})})
    one, two = (StreamsThreadMember(name, process_id="P", assigned=standby) for name in "ab")
    for member in (one, two):
        owners.on_changed(None, member)
    owners.on_changed(one, None)
    assert owners.has_standby("0", 1, "P")
    owners.on_changed(two, None)
    assert not owners.has_standby("0", 1, "P")


def test_a_task_stays_with_the_member_that_got_it_last() -> None:
    """A compacted log may lack the record in which the earlier owner released it."""
    owners, active = TaskOwners(), AssignedTasks({"0": {1: 5}})
    one = StreamsThreadMember("a", process_id="P", assigned=active)
    two = StreamsThreadMember("b", process_id="Q", assigned=active)
    owners.on_changed(None, one)
    owners.on_changed(None, two)
    owners.on_changed(one, None)
    assert owners.active_process("0", 1) == "Q"
