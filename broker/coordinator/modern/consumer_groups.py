"""The service of consumer groups: finding a group, changing a member, computing targets, removing members.

Source: Kafka's `GroupMetadataManager`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from lowtide.broker.coordinator.classic.group_state import GroupState
from lowtide.broker.coordinator.classic.rebalancing import Rebalancing, TimerKey
from lowtide.broker.coordinator.modern.consumer_group import CONSUMER_EPOCHS_SINCE, ConsumerGroup
from lowtide.broker.coordinator.modern.group_decision import GroupDecision, GroupRefusal
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.member_state import MemberState
from lowtide.broker.coordinator.modern.migration import Migration
from lowtide.broker.coordinator.modern.modern_groups import GroupResources, ModernGroups
from lowtide.broker.coordinator.modern.modern_member import Assignment, ModernMember
from lowtide.broker.coordinator.modern.pattern_topics import PatternMatching
from lowtide.broker.coordinator.modern.reconciliation import Reconciliation, reconcile
from lowtide.broker.coordinator.modern.target_assignment import (
    ConsumerTargets,
    TargetAssignment,
)
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.types import TopicId


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """The service of one coordinator's consumer groups."""

    def __init__(
        self, by_id: GroupsById, timers: Timers[TimerKey], resources: GroupResources, rebalancing: Rebalancing
    ) -> None:
        super().__init__(ConsumerGroup, by_id, timers, resources)
        self._targets = ConsumerTargets(self.topics, self.timers, by_id)
        self._patterns = PatternMatching(by_id, self.settings, self.topics)
        self.migration = Migration(by_id, resources, rebalancing)

    def may_replace(self, group_id: str) -> bool:
        """Returns whether the id belongs to a classic group that never had a member."""
        classic = self.by_id.find_classic(group_id)
        return classic is not None and classic.is_simple

    def hash_of(self, _group: ConsumerGroup, names: Iterable[str]) -> int:
        """Returns a hash of these topics."""
        return self.topics.hash_of(names)

    def on_loaded(self, group: ConsumerGroup, effects: Effects) -> None:
        """Starts the sessions of all members, and the timeouts of those that are to revoke partitions."""
        super().on_loaded(group, effects)
        for member in group.members.values():
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None:
                self.timers.expect_revocation(group, member, effects.now_ms)

    # ------------------------------------------------------------------ commits
    def admit_commit(
        self, group: ConsumerGroup, request: OffsetCommitRequest, api_version: int, _now_ms: int
    ) -> ErrorCode:
        """Checks whether a commit is allowed. Errors: those of `ConsumerGroup.check_commit`."""
        places = self.topics.places(request.topics)
        return group.check_commit(request.member_id, request.generation_id_or_member_epoch, api_version, places)

    def check_transactional_commit(self, group: ConsumerGroup, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Checks whether a commit in a transaction is allowed. Errors: those of `ConsumerGroup.check_commit`.

        An old member epoch is ILLEGAL_GENERATION, the only error after which producers abort and continue.
        Source: `OffsetMetadataManager.commitTransactionalOffset`.
        """
        epoch, places = request.generation_id_or_member_epoch, self.topics.places(request.topics)
        error = group.check_commit(request.member_id, epoch, CONSUMER_EPOCHS_SINCE, places, is_transaction=True)
        return ErrorCode.ILLEGAL_GENERATION if error == ErrorCode.STALE_MEMBER_EPOCH else error

    # ------------------------------------------------------------------ decisions
    def open(self, group_id: str, *, creates: bool) -> GroupDecision[ConsumerGroup] | GroupRefusal:
        """Begins a decision about a group, about a new one, or one that takes over a classic one.

        Errors: GROUP_ID_NOT_FOUND.
        """
        group = self.find(group_id)
        if group is not None:
            return GroupDecision(group)
        classic = self.by_id.find_classic(group_id)
        if not creates or (classic is None and group_id in self.by_id):
            return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}.")
        if classic is None or classic.state is GroupState.EMPTY:
            return GroupDecision(ConsumerGroup(group_id), is_new=True, takes_over=classic)
        return self.migration.upgrade(classic)

    def carry_out(self, decision: GroupDecision[ConsumerGroup], effects: Effects) -> None:
        """Adds the records of a decision to the effects, and starts the work that it needs."""
        classic = decision.takes_over
        if classic is not None:
            self.migration.send_away(classic, effects)
        decision.carry_out(effects)
        if decision.resolves:
            self._patterns.begin(decision, effects)
        if classic is not None and classic.members:
            # The classic group's timers end with it. Its members' sessions start again, even if the commit times out.
            effects.then.append(partial(self._start_sessions, classic.group_id))

    def _start_sessions(self, group_id: str, _error: ErrorCode, effects: Effects) -> None:
        group = self.by_id.find_consumer(group_id)
        if group is not None:
            for member in group.members.values():
                if self.timers.deadlines.deadline_of(("heartbeat", group_id, member.member_id)) is None:
                    self.timers.extend_session(group, member, effects.now_ms)

    # ------------------------------------------------------------------ a member
    def update_member(
        self,
        decision: GroupDecision[ConsumerGroup],
        old: ModernMember,
        new: ModernMember,
        owned: Assignment | None,
        effects: Effects,
    ) -> ModernMember | GroupRefusal:
        """Takes over a member's subscription and moves it a step closer to its target.

        Errors: INVALID_REGULAR_EXPRESSION, FENCED_MEMBER_EPOCH.
        """
        changed = self.update_subscription(decision, old, new, effects)
        if isinstance(changed, GroupRefusal):
            return changed
        epoch, subscription_changed = changed
        target = self.next_target(decision, epoch, old, new, effects)
        return self.reconcile_member(
            decision, new, target, owned, effects.now_ms, subscription_changed=subscription_changed
        )

    def update_subscription(
        self, decision: GroupDecision[ConsumerGroup], old: ModernMember, new: ModernMember, effects: Effects
    ) -> tuple[int, bool] | GroupRefusal:
        """Takes over a member's subscription. Returns the group's epoch, and whether the member's topics change.

        Errors: INVALID_REGULAR_EXPRESSION.
        """
        group = decision.group
        if not new.has_same_subscription(old):
            decision.keep_subscription(new)
        names_changed = new.topic_names != old.topic_names
        pattern = self._patterns.update(decision, old, new, effects.wall_ms)
        if isinstance(pattern, GroupRefusal):
            return pattern
        # Source: `GroupMetadataManager.hasPreferredServerAssignorChanged`.
        preferred = group.subscriptions.preferred_assignor(old, new)
        changes_assignor = old.server_assignor != new.server_assignor and self._assignor(preferred) != self.assignor_of(
            group
        )
        rises = (
            decision.is_new
            or decision.takes_over is not None
            or names_changed
            or (pattern.changed and not pattern.is_being_matched)
            or changes_assignor
        )
        return self.next_epoch(decision, old, new, rises=rises), names_changed or pattern.changed

    def _assignor(self, preferred: str | None) -> str:
        assignors = self.settings.consumer_assignors
        return preferred if preferred in assignors else assignors[0]

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Returns the name of the assignor of a group."""
        return self._assignor(group.subscriptions.preferred_assignor())

    def reconcile_member(
        self,
        decision: GroupDecision[ConsumerGroup],
        member: ModernMember,
        target: tuple[int, Assignment],
        owned: Assignment | None,
        now_ms: int,
        *,
        subscription_changed: bool,
    ) -> ModernMember | GroupRefusal:
        """Moves a member a step closer to a target: an epoch and the member's part. Errors: FENCED_MEMBER_EPOCH."""
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
            message = f"{member.member_id} must give back all that it has, and join again."
            return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, message)
        if moved != member:
            decision.keep_current(moved)
            if moved.classic is None and moved.state is MemberState.UNREVOKED_PARTITIONS:
                self.timers.expect_revocation(group, moved, now_ms)
            else:
                self.timers.deadlines.cancel(("revocation", group.group_id, moved.member_id))
        return moved

    # ------------------------------------------------------------------ fencing
    def _fence(self, group: ConsumerGroup, gone: Mapping[str, ModernMember], effects: Effects) -> None:
        """Removes members. The group becomes classic if no member of the consumer protocol is left."""
        if gone and self.migration.may_downgrade(group, gone):
            self.migration.downgrade(group, gone, effects)
        else:
            super()._fence(group, gone, effects)

    # ------------------------------------------------------------------ targets
    def prepare_target(
        self,
        group: ConsumerGroup,
        members: Mapping[str, ModernMember],
        old: ModernMember | None = None,
        new: ModernMember | None = None,
    ) -> Callable[[], TargetAssignment]:
        """Returns a function that computes a target by the assignor that most members prefer."""
        assignor = self._assignor(group.subscriptions.preferred_assignor(old, new))
        return self._targets.prepare(group, members, assignor)

    def assigns_later(self, group: ConsumerGroup) -> bool:
        """Returns whether a worker has to compute the group's next target, or is computing one."""
        return self._targets.is_computing(group) or self._targets.is_heavy(group)

    def make_target(self, group: ConsumerGroup, effects: Effects) -> None:
        """Computes a target for the current members, or lets a worker do it."""
        if not self.assigns_later(group):
            super().make_target(group, effects)
        elif group.members and group.group_epoch > group.target_epoch and not self._targets.is_computing(group):
            self._targets.compute(group, self.prepare_target(group, group.members), effects)


def has_other_topics(topics: TopicView, group: ConsumerGroup) -> bool:
    """Returns whether the group's topics have changed, so that the next heartbeat or join raises its epoch."""
    is_checked = group.checked_image == topics.image_number
    if not is_checked and topics.hash_of(group.subscriptions.names()) == group.metadata_hash:
        group.checked_image = topics.image_number
        return False
    return not is_checked
