"""The common part of the services of consumer and share groups: records, epochs, targets, sessions and fencing.

Guards: the group's epoch rises with every change of its members, their subscriptions and the topics; every change of a
group is a record; a member without heartbeats is removed, and this is retried if its record can't be appended.

Source: Kafka's `GroupMetadataManager`; KIP-848, KIP-932.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, Generic, NamedTuple

from lowtide.broker.coordinator.classic.rebalancing import TimerKey
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.modern.group_decision import G, GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.group_times import GroupTimes, MemberTimers
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.modern_group import ModernChange, ModernGroup
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember
from lowtide.broker.coordinator.modern.target_assignment import TargetAssignment, new_target
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.consumer_group_records import RecordType
from lowtide.protocol.errors import ErrorCode, ProtocolError

RETRY_MS: Final = 500
"""The delay before a timer's records are tried again. Source: `CoordinatorRuntime.EventBasedCoordinatorTimer`."""

NO_ROOM_FOR_MEMBER: Final = GroupRefusal(
    ErrorCode.GROUP_MAX_SIZE_REACHED, "The members of the groups here hold as much as they may."
)


class GroupResources(NamedTuple):
    """What all groups of a broker share."""

    settings: GroupSettings
    topics: TopicView
    memory: MemberMemory
    admission: GroupAdmission

    def check_new_group(self, now_ms: int) -> GroupRefusal | None:
        """Checks whether another group may be created. Errors: as of `GroupAdmission.check_new_group`."""
        error = self.admission.check_new_group(now_ms)
        if error == ErrorCode.NONE:
            return None
        return GroupRefusal(error, "The broker has as many groups as it may have, or too many begin at once.")

    def has_room(self, group: ModernGroup, member: ModernMember) -> bool:
        """Returns whether the memory limits allow a member with this subscription, also in a new group."""
        known = group.members.get(member.member_id)
        more_bytes = member.size_bytes - (known.size_bytes if known is not None else 0)
        if self.memory.has_room(group.memory.held_bytes, more_bytes):
            return True
        self.memory.refused_count += 1
        return False


class ModernGroups(ABC, Generic[G]):
    """The service of one coordinator's groups of one type."""

    def __init__(
        self, group_class: type[G], by_id: GroupsById, timers: Timers[TimerKey], resources: GroupResources
    ) -> None:
        """`by_id` has groups of all types."""
        self._group_class = group_class
        self.by_id = by_id
        self.resources = resources
        self.settings, self.topics = resources.settings, resources.topics
        self.times = GroupTimes(self.settings, self.topics, group_class.group_type)
        self.timers = MemberTimers(timers, self.times)

    def find(self, group_id: str) -> G | None:
        """Returns the group of this id and type."""
        group = self.by_id.get(group_id)
        return group if isinstance(group, self._group_class) else None

    @abstractmethod
    def hash_of(self, group: G, names: Iterable[str]) -> int:
        """Returns a hash of these topics, which changes with anything that a target depends on."""

    # ------------------------------------------------------------------ records
    def note(self, change: ModernChange) -> None:
        """Applies a record. Errors: ProtocolError if a group of another type has the id."""
        is_tombstone, kind = change.value is None, change.kind
        group = self.find(change.group)
        if group is None:
            if is_tombstone:
                return
            group = self._create(change)
        if is_tombstone and kind is kind.GROUP:
            del self.by_id[change.group]
            group.close()
            self.timers.cancel(group, group.members)
            return
        group.apply(change)
        if is_tombstone and kind is kind.MEMBER:
            # Not before: a member whose removal can't be appended keeps its timers.
            self.timers.cancel(group, [change.name])

    def _create(self, change: ModernChange) -> G:
        other = self.by_id.get(change.group)
        if other is not None:
            if not self.may_replace(change.group):
                message = (
                    f"a record of {change.kind.name} for {change.group}, which is a {other.group_type.value} group"
                )
                raise ProtocolError(message)
            other.release()
        group = self._group_class(change.group, self.resources.memory)
        self.by_id[change.group] = group
        return group

    def may_replace(self, _group_id: str) -> bool:
        """Returns whether a group of this type may take over the id of the group that has it."""
        return False

    def on_loaded(self, group: G, effects: Effects) -> None:
        """Starts the sessions of all members."""
        for member in group.members.values():
            self.timers.extend_session(group, member, effects.now_ms)

    @staticmethod
    def on_unloaded(group: ModernGroup, _effects: Effects) -> None:
        """Closes a group that another broker coordinates now. No request waits in it."""
        group.close()

    @staticmethod
    def remove(group: ModernGroup, effects: Effects) -> None:
        """Requests the tombstones of a group."""
        decision = GroupDecision(group)
        decision.remove_group()
        decision.carry_out(effects)

    # ------------------------------------------------------------------ epoch, target
    def next_epoch(self, decision: GroupDecision[G], old: ModernMember, new: ModernMember, *, rises: bool) -> int:
        """Returns the group's epoch after a member's change. It rises if `rises`, or if the topics have changed."""
        group, image_number = decision.group, self.topics.image_number
        if not rises and group.checked_image == image_number:
            return group.group_epoch
        metadata_hash = self.hash_of(group, group.subscriptions.names_after(old, new))
        if not rises and metadata_hash == group.metadata_hash:
            group.checked_image = image_number
            return group.group_epoch
        epoch = group.group_epoch + 1
        decision.keep_epoch(epoch, metadata_hash)
        return epoch

    def next_target(
        self, decision: GroupDecision[G], epoch: int, old: ModernMember, new: ModernMember, effects: Effects
    ) -> tuple[int, Assignment]:
        """Returns the epoch of the target and a member's part of it. Computes a new target if that is due."""
        group = decision.group
        if epoch > group.target_epoch:
            since_ms = effects.wall_ms - group.assigned_wall_ms
            interval_ms = self.times.assignment_interval_ms(group.group_id)
            wait_ms = max(interval_ms - since_ms, 0) if since_ms >= 0 else 0
            if not wait_ms and not self.assigns_later(group):
                make = self.prepare_target(group, group.members_with(new), old, new)
                changed = self._keep_target(decision, epoch, make(), effects.wall_ms)
                return epoch, changed.get(new.member_id, group.targets.get(new.member_id, NOTHING))
            self.timers.schedule_assignment(group.group_id, effects.now_ms + wait_ms)
        return group.target_epoch, group.target_of(new)

    def assigns_later(self, _group: G) -> bool:
        """Returns whether the group's next target is computed apart from the request that needs it."""
        return False

    @abstractmethod
    def prepare_target(
        self,
        group: G,
        members: Mapping[str, ModernMember],
        old: ModernMember | None = None,
        new: ModernMember | None = None,
    ) -> Callable[[], TargetAssignment]:
        """Returns a function that computes a target for these members and no longer needs the group.

        `new` takes the place of `old`.
        """

    def make_target(self, group: G, effects: Effects) -> None:
        """Computes a target for the current members, unless there is one of the group's epoch."""
        if group.members and group.group_epoch > group.target_epoch:
            decision = GroupDecision(group)
            made = self.prepare_target(group, group.members)()
            self._keep_target(decision, group.group_epoch, made, effects.wall_ms)
            decision.carry_out(effects)

    @staticmethod
    def _keep_target(
        decision: GroupDecision[G], epoch: int, made: TargetAssignment, wall_ms: int
    ) -> dict[str, Assignment]:
        """Requests the records of a target. Returns the parts that differ from the last target, by member id."""
        changed = {}
        for member_id, topics in made.items():
            target = new_target(decision.group, member_id, topics)
            if target is not None:
                changed[member_id] = target
                decision.keep_target(member_id, target)
        decision.keep_target_epoch(epoch, wall_ms)
        return changed

    # ------------------------------------------------------------------ fencing
    def fence(self, group: G, members: Iterable[ModernMember], effects: Effects) -> None:
        """Removes members that left or were silent for too long."""
        self._fence(group, {member.member_id: member for member in members}, effects)

    def _fence(self, group: G, gone: Mapping[str, ModernMember], effects: Effects) -> None:
        decision = GroupDecision(group)
        for member_id in gone:
            decision.remove(member_id)
        if gone:
            left = group.subscriptions.patterns_without(gone.values())
            for pattern in dict.fromkeys(member.pattern for member in gone.values() if member.pattern is not None):
                if pattern not in left:
                    decision.keep(RecordType.PATTERN, pattern, None)
            names = group.subscriptions.matched_by(left)
            for member_id, member in group.members.items():
                if member_id not in gone:
                    names |= member.topic_names
            epoch = group.group_epoch + 1
            decision.keep_epoch(epoch, self.hash_of(group, names))
            if len(gone) == len(group.members):
                decision.keep_target_epoch(epoch, group.empty_target_wall_ms)
        decision.carry_out(effects)

    # ------------------------------------------------------------------ time
    def on_timer(self, group: G, key: TimerKey, effects: Effects) -> None:
        """Removes a member that is late, or computes a target that is due."""
        kind, _, member_id = key
        if kind == "assignment":
            self.make_target(group, effects)
        else:
            member = group.members.get(member_id)
            if member is None or (kind == "revocation" and member.state is not MemberState.UNREVOKED_PARTITIONS):
                return
            self.fence(group, [member], effects)
        effects.then.append(partial(self._retry, key))

    def _retry(self, key: TimerKey, error: ErrorCode, effects: Effects) -> None:
        group = self.find(key[1])
        if error == ErrorCode.NONE or group is None:
            return
        if key[2] in group.members if key[2] else group.group_epoch > group.target_epoch:
            self.timers.deadlines.schedule(key, effects.now_ms + RETRY_MS)
