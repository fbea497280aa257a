"""Moves a member from its current assignment to its target: it revokes, its epoch rises, it gets partitions.

Guards: a partition that another member may still have is not assigned. A member's epoch becomes the target's only after
it has revoked all that the target takes away.

Source: Kafka's `CurrentAssignmentBuilder`; KIP-848, "Reconciliation of the group".
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lowtide.broker.coordinator.modern.member_state import MemberEvent, MemberState, next_state
from lowtide.broker.coordinator.modern.modern_member import (
    NOTHING,
    Assignment,
    Epochs,
    ModernMember,
    compact_epochs,
)
from lowtide.protocol.types import TopicId


class Reconciliation(msgspec.Struct, frozen=True):
    """A target, and what has to be known to move a member towards it."""

    target_epoch: int
    target: Assignment
    owned: Assignment | None
    """The partitions that the member reports; None if it reports none."""
    subscribed: Callable[[], frozenset[TopicId]]
    """Returns the ids of the member's topics that exist."""
    is_owned: Callable[[TopicId, int], bool]
    """Whether a member of the group owns a partition."""
    subscription_changed: bool


def reconcile(member: ModernMember, facts: Reconciliation) -> ModernMember | None:
    """Returns the member one step further, or unchanged.

    Returns None if its state is unknown and it has partitions: it must be fenced.
    """
    epoch, state = member.member_epoch, member.state
    if state is MemberState.STABLE:
        is_waiting = epoch == facts.target_epoch
    elif state is MemberState.UNREVOKED_PARTITIONS:
        is_waiting = _owns_any(facts.owned, member.revoking)
        # Revoking raises the epoch, but never above that of a target that doesn't exist yet.
        epoch = min(epoch + 1, facts.target_epoch)
    elif state is MemberState.UNRELEASED_PARTITIONS:
        is_waiting = False
    elif facts.owned is None or facts.owned:
        return None
    else:
        is_waiting, epoch = False, facts.target_epoch
    if is_waiting:
        return _without_unsubscribed(member, facts) if facts.subscription_changed else member
    return _next(member, facts, epoch)


def _owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """Returns whether the member may still have any of these partitions. A member that reports none may."""
    if owned is None:
        return True
    return any(not numbers.isdisjoint(owned.get(topic_id, ())) for topic_id, numbers in partitions.items())


def _without_unsubscribed(member: ModernMember, facts: Reconciliation) -> ModernMember:
    """Asks the member to revoke topics that it no longer subscribes to, before there is a newer target."""
    subscribed = facts.subscribed()
    gone = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id not in subscribed}
    if not gone:
        return member
    kept = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id in subscribed}
    revoking = dict(member.revoking)
    for topic_id, numbers in gone.items():
        revoking[topic_id] = revoking.get(topic_id, frozenset()) | numbers
    if _owns_any(facts.owned, revoking):
        state = next_state(member.state, MemberEvent.MUST_REVOKE)
        return msgspec.structs.replace(member, state=state, assigned=kept, revoking=revoking)
    return msgspec.structs.replace(
        member, assigned=kept, epochs=_epochs(member, kept, member.revoking, member.member_epoch)
    )


def _next(member: ModernMember, facts: Reconciliation, member_epoch: int) -> ModernMember:
    """Compares the current assignment with the target: what to keep, to revoke, to assign, and to wait for."""
    subscribed = facts.subscribed()
    kept: dict[TopicId, frozenset[int]] = {}
    revoking: dict[TopicId, frozenset[int]] = {}
    free: dict[TopicId, frozenset[int]] = {}
    has_unreleased = False
    for topic_id in dict.fromkeys((*facts.target, *member.assigned)):
        target = facts.target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        assigned = member.assigned.get(topic_id, frozenset())
        keeps, gives_back, gets = assigned & target, assigned - target, target - assigned
        own = member.revoking.get(topic_id, frozenset())
        released = frozenset(number for number in gets if number in own or not facts.is_owned(topic_id, number))
        has_unreleased = has_unreleased or len(released) < len(gets)
        if keeps:
            kept[topic_id] = keeps
        if gives_back:
            revoking[topic_id] = gives_back
        if released:
            free[topic_id] = released
    if revoking and _owns_any(facts.owned, revoking):
        return _moved(member, member_epoch, MemberEvent.MUST_REVOKE, kept, revoking)
    for topic_id, numbers in free.items():
        kept[topic_id] = kept.get(topic_id, frozenset()) | numbers
    event = MemberEvent.MUST_WAIT if has_unreleased else MemberEvent.ARRIVED
    return _moved(member, facts.target_epoch, event, kept, NOTHING)


def _moved(
    member: ModernMember, epoch: int, event: MemberEvent, assigned: Assignment, revoking: Assignment
) -> ModernMember:
    return msgspec.structs.replace(
        member,
        member_epoch=epoch,
        previous_epoch=member.member_epoch,
        state=next_state(member.state, event),
        assigned=assigned,
        revoking=revoking,
        epochs=_epochs(member, assigned, revoking, epoch),
    )


def _epochs(member: ModernMember, assigned: Assignment, revoking: Assignment, epoch: int) -> Epochs:
    """Returns in which epoch each partition was assigned: `epoch`, or an earlier one for those that the member had."""
    found: dict[TopicId, dict[int, int]] = {}
    for part, had in ((assigned, member.assigned), (revoking, None)):
        for topic_id, numbers in part.items():
            old = had.get(topic_id, frozenset()) if had is not None else numbers
            row = found.setdefault(topic_id, {})
            for number in numbers:
                known = member.epoch_of(topic_id, number) if number in old else None
                row[number] = epoch if known is None else known
    return compact_epochs(found)
