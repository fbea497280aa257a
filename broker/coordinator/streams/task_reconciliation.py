"""Moves a member from its current tasks to its target: it revokes, its epoch rises, it gets tasks.

Guards: an active task that any member may still have is not assigned. A process has one copy of a task: a member waits
until other members of its process have released it. A member's epoch becomes the target's only after it has revoked all
that the target takes away. A member that has a task in one role gets it in another role without revoking it first.

Source: Kafka's streams `CurrentAssignmentBuilder`; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from lowtide.broker.coordinator.modern.member_state import MemberEvent, MemberState, next_state
from lowtide.broker.coordinator.streams.streams_member import NO_TASKS, AssignedTasks, StreamsThreadMember
from lowtide.broker.coordinator.streams.task_owners import TaskOwners
from lowtide.broker.coordinator.streams.tasks import Tasks


class TaskReconciliation(msgspec.Struct, frozen=True):
    """A target, and what has to be known to move a member towards it."""

    target_epoch: int
    target: Tasks
    owned: Tasks | None
    """The tasks that the member reports; None if it reports none."""
    owners: TaskOwners


class RoleMoves:
    """The tasks of one role: to keep, to revoke, to assign, and whether others have some of the target."""

    __slots__ = ("free", "has_unreleased", "kept", "revoking")

    def __init__(
        self,
        current: Mapping[str, Iterable[int]],
        target: Mapping[str, AbstractSet[int]],
        is_unreleased: Callable[[str, int], bool],
    ) -> None:
        self.kept: dict[str, set[int]] = {}
        self.revoking: dict[str, set[int]] = {}
        self.free: dict[str, set[int]] = {}
        self.has_unreleased = False
        for name in dict.fromkeys((*target, *current)):
            has, wants = set(current.get(name, ())), target.get(name, frozenset())
            gets = wants - has
            free = {number for number in gets if not is_unreleased(name, number)}
            self.has_unreleased = self.has_unreleased or len(free) < len(gets)
            for place, numbers in ((self.kept, has & wants), (self.revoking, has - wants), (self.free, free)):
                if numbers:
                    place[name] = numbers


def reconcile_tasks(member: StreamsThreadMember, facts: TaskReconciliation) -> StreamsThreadMember | None:
    """Returns the member one step further, or unchanged.

    Returns None if its state is unknown and it has tasks: it must be fenced.
    """
    epoch, state = member.member_epoch, member.state
    if state is MemberState.STABLE:
        return member if epoch == facts.target_epoch else _next(member, facts, epoch)
    if state is MemberState.UNREVOKED_PARTITIONS:
        if _may_have(facts.owned, member.revoking):
            return member
        # Revoking raises the epoch, but never above that of a target that doesn't exist yet.
        return _next(member, facts, min(epoch + 1, facts.target_epoch))
    if state is MemberState.UNRELEASED_PARTITIONS:
        return _next(member, facts, epoch)
    if facts.owned is None or facts.owned.active or facts.owned.standby or facts.owned.warmup:
        return None
    return _next(member, facts, facts.target_epoch)


def _may_have(owned: Tasks | None, tasks: AssignedTasks) -> bool:
    """Returns whether the member may still have any of these tasks. A member that reports none may."""
    if owned is None:
        return True
    return any(
        not reported.get(name, frozenset()).isdisjoint(numbers)
        for reported, part in (
            (owned.active, tasks.active),
            (owned.standby, tasks.standby),
            (owned.warmup, tasks.warmup),
        )
        for name, numbers in part.items()
    )


def _next(member: StreamsThreadMember, facts: TaskReconciliation, epoch: int) -> StreamsThreadMember:
    """Compares the current tasks with the target in each role, and then what changes between roles."""
    has, target, owners, process = member.assigned, facts.target, facts.owners, member.process_id

    def standby_elsewhere(name: str, number: int) -> bool:
        return owners.has_standby(name, number, process) and number not in has.standby.get(name, ())

    def warmup_elsewhere(name: str, number: int) -> bool:
        return owners.has_warmup(name, number, process) and number not in has.warmup.get(name, ())

    def active_elsewhere(name: str, number: int) -> bool:
        return owners.active_process(name, number) == process and number not in has.active.get(name, ())

    active = RoleMoves(
        has.active,
        target.active,
        lambda name, number: (
            owners.active_process(name, number) is not None
            or standby_elsewhere(name, number)
            or warmup_elsewhere(name, number)
        ),
    )
    standby = RoleMoves(
        has.standby,
        target.standby,
        lambda name, number: (
            active_elsewhere(name, number)
            or owners.has_standby(name, number, process)
            or warmup_elsewhere(name, number)
        ),
    )
    warmup = RoleMoves(
        has.warmup,
        target.warmup,
        lambda name, number: (
            owners.active_process(name, number) == process
            or standby_elsewhere(name, number)
            or owners.has_warmup(name, number, process)
        ),
    )
    for name in has.active:
        _grant(standby, name, has.active[name])
    _convert(has.standby, standby, warmup)
    _convert(has.warmup, warmup, standby)
    for current, moves in ((has.standby, standby), (has.warmup, warmup)):
        for name in current:
            _take(moves.revoking, name, current[name] & target.active.get(name, frozenset()))
    revoking = AssignedTasks(
        _with_epochs(member, active.revoking, epoch), _frozen(standby.revoking), _frozen(warmup.revoking)
    )
    must_revoke = not revoking.is_empty and _may_have(facts.owned, revoking)
    for current, moves in ((has.standby, standby), (has.warmup, warmup)):
        for name in current:
            granted = set[int]() if must_revoke else active.free.get(name, set())
            _add(moves.kept, name, (current[name] & target.active.get(name, frozenset())) - granted)
    if must_revoke:
        kept = AssignedTasks(_with_epochs(member, active.kept, epoch), _frozen(standby.kept), _frozen(warmup.kept))
        return _moved(member, epoch, MemberEvent.MUST_REVOKE, kept, revoking)
    for moves in (active, standby, warmup):
        for name in moves.free:
            _add(moves.kept, name, moves.free[name])
    waits = active.has_unreleased or standby.has_unreleased or warmup.has_unreleased
    kept = AssignedTasks(
        _with_epochs(member, active.kept, facts.target_epoch), _frozen(standby.kept), _frozen(warmup.kept)
    )
    event = MemberEvent.MUST_WAIT if waits else MemberEvent.ARRIVED
    return _moved(member, facts.target_epoch, event, kept, NO_TASKS)


def _moved(
    member: StreamsThreadMember, epoch: int, event: MemberEvent, assigned: AssignedTasks, revoking: AssignedTasks
) -> StreamsThreadMember:
    return msgspec.structs.replace(
        member,
        member_epoch=epoch,
        previous_epoch=member.member_epoch,
        state=next_state(member.state, event),
        assigned=assigned,
        revoking=revoking,
    )


def _grant(moves: RoleMoves, name: str, numbers: Iterable[int]) -> None:
    """Assigns at once those tasks that the member has in another role and that are free for it in this one."""
    free = moves.free.get(name, set()) & set(numbers)
    _take(moves.free, name, free)
    _add(moves.kept, name, free)


def _convert(current: Mapping[str, frozenset[int]], old: RoleMoves, new: RoleMoves) -> None:
    """Turns standby tasks into warm-up tasks or back, without a revocation."""
    for name, numbers in current.items():
        converted = new.free.get(name, set()) & numbers
        _grant(new, name, converted)
        _take(old.revoking, name, converted)


def _add(place: dict[str, set[int]], name: str, numbers: AbstractSet[int]) -> None:
    if numbers:
        place[name] = place.get(name, set()) | numbers


def _take(place: dict[str, set[int]], name: str, numbers: AbstractSet[int]) -> None:
    left = place.get(name, set()) - numbers
    if left:
        place[name] = left
    else:
        place.pop(name, None)


def _frozen(tasks: Mapping[str, set[int]]) -> dict[str, frozenset[int]]:
    return {name: frozenset(numbers) for name, numbers in tasks.items()}


def _with_epochs(
    member: StreamsThreadMember, tasks: Mapping[str, Iterable[int]], epoch: int
) -> dict[str, dict[int, int]]:
    """Returns active tasks with the epochs in which the member got them: `epoch` for those that it did not have."""
    had = member.assigned.active
    return {
        name: {number: had.get(name, {}).get(number, epoch) for number in numbers} for name, numbers in tasks.items()
    }
