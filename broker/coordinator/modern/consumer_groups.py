"""What all decisions about groups whose partitions the broker assigns have in common: finding a group, changing a member, letting it go.

Guards: the group's epoch rises with every change of its members, what they subscribe to, and the topics as they are; nothing is done to a
group that isn't kept in a record; a member that is late is out, and if the record of that can't be kept, it is tried again.

Source: Kafka's `GroupMetadataManager`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.rebalancing import Rebalancing, TimerKey
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.assignors import Target
from lowtide.broker.coordinator.modern.consumer_group import CONSUMER_EPOCHS_SINCE, ConsumerGroup, bytes_of
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.group_times import GroupTimes
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.migration import Migration, Shared
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember
from lowtide.broker.coordinator.modern.pattern_topics import PatternMatching
from lowtide.broker.coordinator.modern.reconciliation import Reconciliation, reconcile
from lowtide.broker.coordinator.modern.target_assignment import Kept, TargetAssigner, epoch_change
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects, Job, WorkerCall
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.consumer_group_records import ConsumerGroupChange, RecordType
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.types import TopicId

RETRY_MS: Final = 500
"""How long what is due waits that could not be kept. Source: `CoordinatorRuntime.EventBasedCoordinatorTimer`."""

MEMBER_TIMERS: Final = ("heartbeat", "revocation", "rejoin", "resync")


class ConsumerGroups:
    """The service of the consumer groups among those of one coordinator; `by_id` has classic ones, too."""

    def __init__(
        self,
        by_id: GroupsById,
        settings: GroupSettings,
        timers: Timers[TimerKey],
        shared: Shared,
        rebalancing: Rebalancing,
    ) -> None:
        self.by_id = by_id
        self.settings = settings
        self.timers = timers
        self.topics = shared.topics
        self.memory = shared.memory
        self.times = GroupTimes(settings, self.topics)
        self._assigner = TargetAssigner(settings, self.topics, self.times)
        self._assigning: set[str] = set()
        """The groups whose targets a worker is making."""
        self._patterns = PatternMatching(by_id, settings, self.topics)
        self.migration = Migration(by_id, settings, shared, rebalancing)

    # ------------------------------------------------------------------ records
    def note(self, change: ConsumerGroupChange) -> ConsumerGroup | None:
        """Take over what a record says: the group, None where there is none any more.

        Errors: ProtocolError for one of a classic group.
        """
        group = self.by_id.find_consumer(change.group)
        if group is None:
            if change.value is None:
                return None
            if self.by_id.find_share(change.group) is not None:
                message = f"a record of {change.kind.name} for {change.group}, which is a share group"
                raise ProtocolError(message)
            classic = self.by_id.find_classic(change.group)
            if classic is not None and not classic.is_simple:
                message = f"a record of {change.kind.name} for {change.group}, which is a classic group"
                raise ProtocolError(message)
            if classic is not None:
                classic.release()
            group = self.by_id[change.group] = ConsumerGroup(change.group, self.memory)
        if change.kind is RecordType.GROUP and change.value is None:
            del self.by_id[change.group]
            group.close()
            self._cancel_timers(group, group.members)
            return None
        group.apply(change)
        if (
            change.kind is RecordType.MEMBER and change.value is None
        ):  # Not before: a member that can't be removed is still waited for.
            self._cancel_timers(group, [change.name])
        return group

    def on_loaded(self, group: ConsumerGroup, effects: Effects) -> None:
        """From now on members have to show that they live."""
        for member in group.members.values():
            self.extend_session(group, member, effects.now_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
                self._expect_revocation(group, member, effects.now_ms)

    @staticmethod
    def on_unloaded(group: ConsumerGroup, _effects: Effects) -> None:
        """Another broker coordinates the group: no request waits in it."""
        group.close()

    @staticmethod
    def remove(group: ConsumerGroup, effects: Effects) -> None:
        """Ask for the group's records to be taken back."""
        decision = GroupDecision(group)
        decision.remove_group()
        decision.carry_out(effects)

    def admit_commit(
        self, group: ConsumerGroup, request: OffsetCommitRequest, api_version: int, _now_ms: int
    ) -> ErrorCode:
        """Let a commit in. Errors: those of `ConsumerGroup.check_commit`."""
        places = self.topics.places(request.topics)
        return group.check_commit(request.member_id, request.generation_id_or_member_epoch, api_version, places)

    def check_transactional_commit(self, group: ConsumerGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Whether a commit in a transaction is let in. Errors: those of `ConsumerGroup.check_commit`.

        Producers have one code for an old member epoch, after which they abort and continue: ILLEGAL_GENERATION.
        Source: `OffsetMetadataManager.commitTransactionalOffset`.
        """
        epoch, places = request.generation_id_or_member_epoch, self.topics.places(request.topics)
        error = group.check_commit(request.member_id, epoch, CONSUMER_EPOCHS_SINCE, places, is_transaction=True)
        return ErrorCode.ILLEGAL_GENERATION if error == ErrorCode.STALE_MEMBER_EPOCH else error

    def has_room(self, group: ConsumerGroup, member: ModernMember) -> bool:
        """Whether a member may be remembered, or more of it."""
        known = group.members.get(member.member_id)
        more_bytes = bytes_of(member) - (bytes_of(known) if known is not None else 0)
        if self.memory.has_room(group.held_bytes, more_bytes):
            return True
        self.memory.refused_count += 1
        return False

    # ------------------------------------------------------------------ finding, keeping
    def open(self, group_id: str, *, creates: bool) -> GroupDecision | GroupRefusal:
        """Begin a decision about a group, about a new one, or one that takes a classic one over.

        Errors: GROUP_ID_NOT_FOUND.
        """
        group = self.by_id.find_consumer(group_id)
        if group is not None:
            return GroupDecision(group)
        if not creates or self.by_id.find_share(group_id) is not None:
            return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}.")
        classic = self.by_id.find_classic(group_id)
        if classic is None or classic.state is GroupState.EMPTY:
            return GroupDecision(ConsumerGroup(group_id), is_new=True, takes_over=classic)
        return self.migration.upgrade(classic)

    def carry_out(self, decision: GroupDecision, effects: Effects) -> None:
        """Ask for what was decided."""
        classic = decision.takes_over
        if classic is not None:
            self.migration.send_away(classic, effects)
        decision.carry_out(effects)
        if decision.resolves:
            self._patterns.begin(decision, effects)
        if classic is not None and classic.members:
            # The classic group's timers end with it; those of its members start again, whether or not the records are
            # committed in time.
            effects.then.append(partial(self._start_sessions, classic.group_id))

    def _start_sessions(self, group_id: str, _error: ErrorCode, effects: Effects) -> None:
        group = self.by_id.find_consumer(group_id)
        if group is not None:
            for member in group.members.values():
                if self.timers.deadline_of(("heartbeat", group_id, member.member_id)) is None:
                    self.extend_session(group, member, effects.now_ms)

    # ------------------------------------------------------------------ a member
    def update_member(
        self, decision: GroupDecision, old: ModernMember, new: ModernMember, owned: Assignment | None, effects: Effects
    ) -> ModernMember | GroupRefusal:
        """Take over what a member says, and bring it a step closer to its target.

        Errors: INVALID_REGULAR_EXPRESSION, FENCED_MEMBER_EPOCH.
        """
        group = decision.group
        changed = self.update_subscription(decision, old, new, effects)
        if isinstance(changed, GroupRefusal):
            return changed
        epoch, subscription_changed = changed
        target_epoch, target = group.target_epoch, None
        if epoch > group.target_epoch:
            wait_ms = self._assigner.wait_ms(group, effects.wall_ms)
            if wait_ms or group.group_id in self._assigning or self._assigner.is_heavy(group):
                self._schedule_assignment(group.group_id, effects.now_ms + wait_ms)
            else:
                target_epoch, target = epoch, self._assign(decision, epoch, old, new, effects.wall_ms)
        if target is None:
            target = group.target_of(new)
        return self.reconcile_member(
            decision, new, (target_epoch, target), owned, effects.now_ms, subscription_changed=subscription_changed
        )

    def update_subscription(
        self, decision: GroupDecision, old: ModernMember, new: ModernMember, effects: Effects
    ) -> tuple[int, bool] | GroupRefusal:
        """Take over what a member says: the group's epoch, and whether the member consumes anything else.

        Errors: as of `update_member`.
        """
        group = decision.group
        if not new.says_the_same_as(old):
            decision.keep_subscription(new)
        names_changed = new.topic_names != old.topic_names
        pattern = self._patterns.update(decision, old, new, effects.wall_ms)
        if isinstance(pattern, GroupRefusal):
            return pattern
        epoch = group.group_epoch
        # Source: `GroupMetadataManager.hasPreferredServerAssignorChanged`.
        preferred = group.subscriptions.preferred_assignor(old, new)
        changes_assignor = old.server_assignor != new.server_assignor and self._assignor(preferred) != self.assignor_of(
            group
        )
        bumps = (
            decision.is_new
            or decision.takes_over is not None
            or names_changed
            or (pattern.changed and not pattern.is_being_matched)
            or changes_assignor
        )
        image_number = self.topics.image_number
        if bumps or group.checked_image != image_number:
            metadata_hash = self.topics.hash_of(group.subscriptions.names_after(old, new))
            if bumps or metadata_hash != group.metadata_hash:
                epoch += 1
                decision.keep_epoch(epoch, metadata_hash)
            else:
                group.checked_image = image_number
        return epoch, names_changed or pattern.changed

    def _assign(
        self, decision: GroupDecision, epoch: int, old: ModernMember, new: ModernMember, wall_ms: int
    ) -> Assignment:
        group = decision.group
        members = dict(group.members)
        if new.instance_id is not None:
            replaced = group.static_members.get(new.instance_id)
            if replaced is not None:
                members.pop(replaced, None)
        members[new.member_id] = new
        assignor = self._assignor(group.subscriptions.preferred_assignor(old, new))
        changes, changed = self._assigner.assign(group, epoch, members, assignor, wall_ms)
        decision.changes.extend(changes)
        target = changed.get(new.member_id)
        return target if target is not None else group.targets.get(new.member_id, NOTHING)

    def _assignor(self, preferred: str | None) -> str:
        return preferred if preferred in self.settings.consumer_assignors else self._assigner.default_assignor()

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Who assigns a group's partitions."""
        return self._assignor(group.subscriptions.preferred_assignor())

    def reconcile_member(
        self,
        decision: GroupDecision,
        member: ModernMember,
        target: tuple[int, Assignment],
        owned: Assignment | None,
        now_ms: int,
        *,
        subscription_changed: bool,
    ) -> ModernMember | GroupRefusal:
        """Bring a member a step closer to a target, which is an epoch and what it has to have in it.

        Errors: FENCED_MEMBER_EPOCH.
        """
        group = decision.group
        if not subscription_changed and member.is_reconciled_to(target[0]):
            return member

        def subscribed() -> frozenset[TopicId]:
            return self.topics.ids_of(group.subscriptions.names_of(member))

        moved = reconcile(
            member,
            Reconciliation(
                target_epoch=target[0],
                target=target[1],
                owned=owned,
                subscribed=subscribed,
                is_owned=group.owners.is_owned,
                subscription_changed=subscription_changed,
            ),
        )
        if moved is None:
            return GroupRefusal(
                ErrorCode.FENCED_MEMBER_EPOCH, f"{member.member_id} must give back all that it has, and join again."
            )
        if moved != member:
            decision.keep_current(moved)
            if moved.classic is None and moved.state is MemberState.UNREVOKED_PARTITIONS:
                self._expect_revocation(group, moved, now_ms)
            else:
                self.timers.cancel(("revocation", group.group_id, moved.member_id))
        return moved

    # ------------------------------------------------------------------ letting go
    def fence(self, group: ConsumerGroup, members: Iterable[ModernMember], effects: Effects) -> None:
        """Let members go: they left, or are late.

        If the last one is among them that speaks the new protocol, the group becomes classic.
        """
        gone = {member.member_id: member for member in members}
        if not gone:
            effects.barrier = max(effects.barrier, group.last_record_offset)
            return
        if self.migration.may_downgrade(group, gone):
            self.migration.downgrade(group, gone, effects)
            return
        decision = GroupDecision(group)
        for member_id in gone:
            decision.remove(member_id)
        kept = group.subscriptions.patterns_without(gone.values())
        for pattern in dict.fromkeys(member.pattern for member in gone.values() if member.pattern is not None):
            if pattern not in kept:
                decision.keep(RecordType.PATTERN, pattern, None)
        names = {
            name for member_id, member in group.members.items() if member_id not in gone for name in member.topic_names
        }
        names |= group.subscriptions.matched_by(kept)
        epoch = group.group_epoch + 1
        decision.keep_epoch(epoch, self.topics.hash_of(names))
        if len(gone) == len(group.members):
            # Nothing is to be assigned. Without a time, as in a new group: the next member's target doesn't wait for
            # its interval.
            decision.changes.append(epoch_change(group, epoch, 0))
        decision.carry_out(effects)

    # ------------------------------------------------------------------ time
    def on_timer(self, group: ConsumerGroup, key: TimerKey, effects: Effects) -> None:
        """A member of a group is late, or a new target is due."""
        kind, _, member_id = key
        if kind == "assignment":
            self._make_target(group, effects)
        else:
            member = group.members.get(member_id)
            if member is None or (kind == "revocation" and member.state is not MemberState.UNREVOKED_PARTITIONS):
                return
            self.fence(group, [member], effects)
        effects.then.append(partial(self._retry, key))

    def _retry(self, key: TimerKey, error: ErrorCode, effects: Effects) -> None:
        group = self.by_id.find_consumer(key[1])
        if error == ErrorCode.NONE or group is None:
            return
        if key[2] in group.members if key[2] else group.group_epoch > group.target_epoch:
            self.timers.schedule(key, effects.now_ms + RETRY_MS)

    def _make_target(self, group: ConsumerGroup, effects: Effects) -> None:
        """Make a target for the members that there are: now, or let a worker do it."""
        if group.group_epoch <= group.target_epoch or not group.members or group.group_id in self._assigning:
            return
        make = self._assigner.prepare(group, group.members, self.assignor_of(group))
        if self._assigner.is_heavy(group):
            self._assigning.add(group.group_id)
            effects.work.append(WorkerCall(make, partial(self._on_target, group, group.group_epoch)))
        else:
            self._keep_target(group, group.group_epoch, make(), effects)

    def _on_target(self, group: ConsumerGroup, epoch: int, made: Target | BaseException, effects: Effects) -> None:
        """A worker has made a target: find out what of it is new, a member at a time."""
        if isinstance(made, BaseException):
            self._assigning.discard(group.group_id)
            return
        kept: Kept = []
        steps = self._assigner.keep_in_steps(group, made, kept)
        effects.jobs.append(Job(steps, partial(self._on_compared, group, epoch, frozenset(made), kept)))

    def _on_compared(
        self, group: ConsumerGroup, epoch: int, members: frozenset[str], kept: Kept, effects: Effects
    ) -> None:
        """Keep a target for these members; who has left since gets nothing by it, and who has come is in the next one."""
        self._assigning.discard(group.group_id)
        if self.by_id.get(group.group_id) is not group or epoch <= group.target_epoch:
            return
        if group.group_epoch == epoch and not members <= group.members.keys():
            # A static member was replaced, for which no epoch rises: what this target has for it would be no member's.
            self._schedule_assignment(group.group_id, effects.now_ms)
            return
        for change, record in kept:
            if change.name in group.members:
                effects.keep_encoded(change, record)
        effects.keep_change(epoch_change(group, epoch, effects.wall_ms))
        if group.group_epoch > epoch:
            self._schedule_assignment(
                group.group_id, effects.now_ms + self.times.assignment_interval_ms(group.group_id)
            )

    def _keep_target(self, group: ConsumerGroup, epoch: int, made: Target, effects: Effects) -> None:
        changes, _ = self._assigner.keep(group, epoch, made, effects.wall_ms)
        for change in changes:
            effects.keep_change(change)

    def _schedule_assignment(self, group_id: str, deadline_ms: int) -> None:
        if self.timers.deadline_of(("assignment", group_id, "")) is None:
            self.timers.schedule(("assignment", group_id, ""), deadline_ms)

    def extend_session(self, group: ConsumerGroup, member: ModernMember, now_ms: int) -> None:
        """A member has shown that it lives."""
        classic = member.classic
        timeout_ms = self.times.session_timeout_ms(group.group_id) if classic is None else classic.session_timeout_ms
        self.timers.schedule(("heartbeat", group.group_id, member.member_id), now_ms + timeout_ms)

    def _expect_revocation(self, group: ConsumerGroup, member: ModernMember, now_ms: int) -> None:
        """A member was asked to give partitions back."""
        self.timers.schedule(
            ("revocation", group.group_id, member.member_id), now_ms + max(member.rebalance_timeout_ms, 0)
        )

    def _cancel_timers(self, group: ConsumerGroup, members: Iterable[str]) -> None:
        for member_id in members:
            for kind in MEMBER_TIMERS:
                self.timers.cancel((kind, group.group_id, member_id))
        if group.is_dead:
            self.timers.cancel(("assignment", group.group_id, ""))


def has_other_topics(topics: TopicView, group: ConsumerGroup) -> bool:
    """Whether the group's topics have changed since its epoch began, which its next member to join or to send a heartbeat raises."""
    if (
        group.checked_image != topics.image_number
        and topics.hash_of(group.subscriptions.names()) == group.metadata_hash
    ):
        group.checked_image = topics.image_number
    return group.checked_image != topics.image_number
