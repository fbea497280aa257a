"""The groups of one partition of `__consumer_offsets`, with their offsets: one coordinator's whole state, and what is asked of it.

Pure: a request, the time and the state give records and answers. Offsets change only by `apply` and `note`. What a classic group does
between two records (who has joined, who is late) is in memory alone, as in Kafka: a coordinator that takes over knows the last generation
that was kept, takes its members for alive, and goes on from there.

Guards: nothing is told of a group that is loaded in part (the runtime's part); a group that nobody uses costs nothing for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup, GroupState
from lowtide.broker.coordinator.classic.classic_membership import Membership
from lowtide.broker.coordinator.classic.joining import Client, Joining
from lowtide.broker.coordinator.classic.rebalancing import NO_MEMBER_ID, Rebalancing, TimerKey, join_failed, sync_failed
from lowtide.broker.coordinator.consumer.any_group import AnyGroup, GroupsById
from lowtide.broker.coordinator.consumer.classic_members import ClassicMembers
from lowtide.broker.coordinator.consumer.consumer_group import ConsumerGroup
from lowtide.broker.coordinator.consumer.consumer_groups import ConsumerGroups
from lowtide.broker.coordinator.consumer.consumer_heartbeats import ConsumerHeartbeats
from lowtide.broker.coordinator.consumer.decision import Decision
from lowtide.broker.coordinator.consumer.migration import Shared
from lowtide.broker.coordinator.consumer.topic_view import NoCluster, TopicView
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.committed_offsets import CommittedOffsets, check_commit
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.runtime.in_transaction import InTransaction, TransactionEnded
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.consumer_group_records import ConsumerGroupChange
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import GroupMetadata, OffsetCommit, OffsetCommitKey, OffsetCommits
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, ProducerId
from lowtide.runtime.random import Random

GROUP_ID_NOT_FOUND_SINCE: Final = 9
"""The version of OffsetCommit that tells an unknown group apart from an old generation."""

RecordChange: TypeAlias = OffsetCommit | GroupMetadata | ConsumerGroupChange

GroupChange: TypeAlias = RecordChange | OffsetCommits | InTransaction | TransactionEnded
"""What the log says of groups, one record or marker at a time, or what was just appended."""

_EXPIRY: Final[TimerKey] = ("expiry", "", "")


class Groups:
    """See the module."""

    def __init__(
        self,
        settings: GroupSettings,
        random: Random,
        memory: MemberMemory | None = None,
        topics: TopicView | None = None,
        admission: GroupAdmission | None = None,
    ) -> None:
        """`memory`, `topics` and `admission` are shared by all groups of a broker."""
        self.settings = settings
        self.memory = memory if memory is not None else MemberMemory()
        self.by_id: GroupsById = {}
        self.admission = admission if admission is not None else GroupAdmission(settings)
        self.committed = CommittedOffsets(settings, self.admission)
        self.timers: Timers[TimerKey] = Timers()
        self.last_removal_offset: Offset = UNKNOWN_OFFSET
        """The last record that took something back."""
        self._rebalancing = Rebalancing(settings, self.timers)
        self._joining = Joining(settings, self._rebalancing, random)
        self.membership = Membership(self._rebalancing)
        view = topics if topics is not None else TopicView(NoCluster())
        self.consumers = ConsumerGroups(self.by_id, settings, self.timers, Shared(view, self.memory), self._rebalancing)
        self.heartbeats = ConsumerHeartbeats(self.consumers, random, self.admission)
        self._classic_members = ClassicMembers(self.consumers, random)

    # ------------------------------------------------------------------ records
    @property
    def count(self) -> int:
        """Groups that are known."""
        return len(self.by_id)

    def apply(self, change: GroupChange, offset: Offset) -> None:
        """Take over what a record of the log says that is being loaded, or a marker.

        Errors: ProtocolError for a group that can't be.
        """
        if isinstance(change, GroupMetadata) and change.value is not None:
            group = ClassicGroup.from_record(change.group, change.value, self.memory)
            if change.group in self.by_id:
                self.by_id[change.group].release()
            self.by_id[change.group] = group
        self.note(change, offset)

    def note(self, change: GroupChange, offset: Offset) -> None:
        """Take over what a record says that was just appended, or a marker; what it says of a living group is known here already.

        Of several records `offset` is that of the first.
        """
        if isinstance(change, TransactionEnded):
            for group_id in self.committed.end_transaction(change.producer_id, is_commit=change.is_commit):
                if group_id in self.by_id:
                    self.by_id[group_id].last_record_offset = offset
        elif isinstance(change, OffsetCommits):
            self._note_commits(change, offset)
        elif not isinstance(change, InTransaction):
            self._note_record(change, offset)
        elif isinstance(change.change, OffsetCommits):
            self._note_commits(change.change, offset, change.producer_id)
        else:
            self._note_record(change.change, offset, change.producer_id)

    def _note_commits(self, commits: OffsetCommits, offset: Offset, producer_id: ProducerId | None = None) -> None:
        if producer_id is None:
            self.committed.apply_commits(commits)
        else:
            for place, (partition, value) in enumerate(commits.values, offset):
                key = OffsetCommitKey(group=commits.group, topic=commits.topic, partition=partition)
                self.committed.apply_pending(producer_id, key, value, place)
        group = self.by_id.get(commits.group)
        if group is None:
            group = self._new_group(commits.group, commits.values[0][1].commit_timestamp)
        group.last_record_offset = offset + len(commits.values) - 1

    def _note_record(self, change: RecordChange, offset: Offset, producer_id: ProducerId | None = None) -> None:
        group_id = change.key.group if isinstance(change, OffsetCommit) else change.group
        if change.value is None:
            self.last_removal_offset = offset
        if isinstance(change, ConsumerGroupChange):
            self.consumers.note(change)
        elif isinstance(change, OffsetCommit):
            if producer_id is not None and change.value is not None:
                self.committed.apply_pending(producer_id, change.key, change.value, offset)
            else:
                self.committed.apply(change.key, change.value)
            if change.value is not None and group_id not in self.by_id:
                self._new_group(group_id, change.value.commit_timestamp)
        elif change.value is None:
            gone = self.by_id.get(group_id)
            if isinstance(gone, ClassicGroup):
                del self.by_id[group_id]
                self._rebalancing.cancel_timers(gone)
                gone.state = GroupState.DEAD
                gone.release()
        elif (prepared := self.consumers.migration.take_prepared(group_id)) is not None:
            self.by_id[group_id] = prepared
        group = self.by_id.get(group_id)
        if group is not None:
            group.last_record_offset = offset

    def on_loaded(self, effects: Effects) -> None:
        """All records are applied: from now on members have to show that they live."""
        for group_id in self.committed.offsets:
            if group_id not in self.by_id:  # A group of the other kind was here, and nobody has taken its place yet.
                self._new_group(group_id, effects.wall_ms)
        for group in list(self.by_id.values()):
            if isinstance(group, ConsumerGroup):
                self.consumers.on_loaded(group, effects)
                continue
            for member in group.members.values():
                self._rebalancing.extend_session(group, member, effects.now_ms)
            if len(group.members) > self.settings.max_size:
                self._rebalancing.prepare(group, effects)
        self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.retention_check_interval_ms)

    def on_unloaded(self, effects: Effects) -> None:
        """Another broker coordinates these groups now: whoever waits here is sent there."""
        for group in self.by_id.values():
            if isinstance(group, ConsumerGroup):
                group.is_dead = True
                group.release()
                continue
            for member in group.members.values():
                reply = group.take_awaiting_join(member)
                if reply is not None:
                    effects.answer(reply, join_failed(ErrorCode.NOT_COORDINATOR, member.member_id))
                if member.awaiting_sync is not None:
                    effects.answer(member.awaiting_sync, sync_failed(ErrorCode.NOT_COORDINATOR))
                    member.awaiting_sync = None
            group.state = GroupState.DEAD
            group.release()
        self.by_id.clear()
        self.committed.release()

    def read_barrier(self, group_id: str) -> Offset:
        """The last record that has a say in what is told of a group; -1 if there is none."""
        group = self.by_id.get(group_id)
        return max(group.last_record_offset, self.last_removal_offset) if group is not None else self.last_removal_offset

    # ------------------------------------------------------------------ time
    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """Something is due."""
        kind, group_id, member_id = key
        if kind == "expiry":
            self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.retention_check_interval_ms)
            self.expire(effects)
            return
        group = self.by_id.get(group_id)
        if group is None:
            return
        if isinstance(group, ConsumerGroup):
            self.consumers.on_timer(key, effects)
            return
        if kind == "heartbeat":
            self._rebalancing.on_silent(group, member_id, effects)
        elif kind == "join":
            self._rebalancing.on_join_timeout(group, effects)
        elif kind == "sync":
            self._rebalancing.on_sync_timeout(group, effects)
        self._drop_if_unused(group)

    def expire(self, effects: Effects) -> None:
        """Ask for outdated offsets to be forgotten, and for groups without members that have none left."""
        for group in list(self.by_id.values()):
            if self.committed.expire(group, effects) and _is_unused(group):
                self._remove_group(group, effects)

    # ------------------------------------------------------------------ members
    def join(self, request: JoinGroupRequest, client: Client, reply: Reply, effects: Effects) -> None:
        """JoinGroup. Errors: those of `Joining.join`, of `GroupAdmission.check_new_group`, INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT."""
        settings, member_id = self.settings, request.member_id
        group = self.by_id.get(request.group_id)
        if not request.group_id:
            effects.answer(reply, join_failed(ErrorCode.INVALID_GROUP_ID, member_id))
        elif not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
            effects.answer(reply, join_failed(ErrorCode.INVALID_SESSION_TIMEOUT, member_id))
        elif isinstance(group, ConsumerGroup) and group.members:
            self._classic_members.join(group, request, client, reply, effects)
        elif not isinstance(group, ClassicGroup) and member_id != NO_MEMBER_ID:
            effects.answer(reply, join_failed(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        elif group is None and (refused := self.admission.check_new_group(effects.now_ms)) != ErrorCode.NONE:
            effects.answer(reply, join_failed(refused, member_id))
        else:
            if isinstance(group, ConsumerGroup):
                self._remove_group(group, effects)
            if not isinstance(group, ClassicGroup):
                group = self._new_group(request.group_id, effects.wall_ms)
            self._joining.join(group, request, client, reply, effects)
            self._drop_if_unused(group)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """SyncGroup. Errors: those of `Membership.sync`, INVALID_GROUP_ID."""
        group = self.by_id.get(request.group_id)
        if not request.group_id:
            effects.answer(reply, sync_failed(ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            effects.answer(reply, sync_failed(ErrorCode.UNKNOWN_MEMBER_ID))
        elif isinstance(group, ConsumerGroup):
            self._classic_members.sync(group, request, reply, effects)
        else:
            self.membership.sync(group, request, reply, effects)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int) -> ErrorCode:
        """Heartbeat. Errors: those of `Membership.heartbeat`, INVALID_GROUP_ID."""
        group = self.by_id.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
        if isinstance(group, ConsumerGroup):
            return self._classic_members.heartbeat(group, member_id, group_instance_id, generation_id, now_ms)
        return self.membership.heartbeat(group, member_id, group_instance_id, generation_id, now_ms)

    def leave(self, group_id: str, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """LeaveGroup, of a group whose id isn't empty."""
        group = self.by_id.get(group_id)
        if group is None:
            return [
                MemberResponse(member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
                for row in members
            ]
        if isinstance(group, ConsumerGroup):
            return self._classic_members.leave(group, members, effects)
        rows = self.membership.leave(group, members, effects)
        self._drop_if_unused(group)
        return rows

    # ------------------------------------------------------------------ offsets
    def check_commit(self, request: OffsetCommitRequest, api_version: int, effects: Effects) -> ErrorCode:
        """Whether a commit is let in; a commit is a sign of life too. Errors: those of `check_commit`, GROUP_ID_NOT_FOUND.

        The first commit of a group: those of `GroupAdmission.check_new_group_of_offsets`.
        """
        generation_id = request.generation_id_or_member_epoch
        group = self.by_id.get(request.group_id)
        if group is None:
            if generation_id < 0:
                return self.admission.check_new_group_of_offsets(effects.now_ms)
            return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= GROUP_ID_NOT_FOUND_SINCE else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ConsumerGroup):
            return group.check_commit(request.member_id, generation_id, api_version, self.consumers.topics.places(request.topics))
        error = check_commit(group, request.member_id, request.group_instance_id, generation_id)
        if error == ErrorCode.NONE and group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._rebalancing.extend_session(group, group.members[request.member_id], effects.now_ms)
        return error

    def check_transactional_commit(self, request: TxnOffsetCommitRequest, now_ms: int) -> ErrorCode:
        """Whether a commit in a transaction is let in.

        Errors: those of `check_commit`, INVALID_COMMIT_OFFSET_SIZE where more would be pending than `PENDING_OFFSETS_MAX`.
        """
        if not self.committed.pending.has_room(request.producer_id, sum(len(topic.partitions) for topic in request.topics)):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        generation_id = request.generation_id_or_member_epoch
        group = self.by_id.get(request.group_id)
        if group is None:
            return self.admission.check_new_group_of_offsets(now_ms) if generation_id < 0 else ErrorCode.ILLEGAL_GENERATION
        if isinstance(group, ConsumerGroup):
            places = self.consumers.topics.places(request.topics)
            error = group.check_commit(request.member_id, generation_id, GROUP_ID_NOT_FOUND_SINCE, places, is_transaction=True)
            # Producers know the other code only, by which they abort and go on. Source: `OffsetMetadataManager.commitTransactionalOffset`.
            return ErrorCode.ILLEGAL_GENERATION if error == ErrorCode.STALE_MEMBER_EPOCH else error
        return check_commit(group, request.member_id, request.group_instance_id, generation_id, is_transactional=True)

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether a member may be told offsets. Errors: those of `ConsumerGroup.check_fetch`; none of other groups."""
        group = self.by_id.get(group_id)
        return group.check_fetch(member_id, member_epoch) if isinstance(group, ConsumerGroup) else ErrorCode.NONE

    def check_offset_delete(self, group_id: str) -> AnyGroup | ErrorCode:
        """The group whose offsets may be deleted. Errors: GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP where nobody knows what members consume."""
        group = self.by_id.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if isinstance(group, ClassicGroup) and group.state is not GroupState.EMPTY and not group.uses_consumer_protocol:
            return ErrorCode.NON_EMPTY_GROUP
        return group

    def delete_group(self, group_id: str, effects: Effects) -> ErrorCode:
        """Ask for a group to be forgotten, with its offsets. Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.by_id.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if not (group.is_empty if isinstance(group, ConsumerGroup) else group.state is GroupState.EMPTY):
            return ErrorCode.NON_EMPTY_GROUP
        self.committed.delete_all(group_id, effects)
        self._remove_group(group, effects)
        return ErrorCode.NONE

    @staticmethod
    def _remove_group(group: AnyGroup, effects: Effects) -> None:
        """Ask for a group's own records to be taken back."""
        if isinstance(group, ConsumerGroup):
            decision = Decision(group)
            decision.remove_group()
            decision.carry_out(effects)
        else:
            effects.keep_group(group.group_id, None)

    # ------------------------------------------------------------------ listing
    def list(self, states: Iterable[str]) -> list[AnyGroup]:
        """The groups in one of these states (any letters' case); without any, all."""
        wanted = {state.strip().lower() for state in states}
        return [group for group in self.by_id.values() if not wanted or group.state.value.lower() in wanted]

    def _new_group(self, group_id: str, wall_ms: int) -> ClassicGroup:
        group = self.by_id[group_id] = ClassicGroup(group_id, wall_ms=wall_ms, memory=self.memory)
        return group

    def _drop_if_unused(self, group: ClassicGroup) -> None:
        """Forget a group of which nothing is kept and that nobody is in: a client could name as many as it likes."""
        if (
            group.state is GroupState.EMPTY
            and group.last_record_offset == UNKNOWN_OFFSET
            and group.generation_id == 0
            and not group.pending_join
            and self.by_id.get(group.group_id) is group
        ):
            del self.by_id[group.group_id]


def _is_unused(group: AnyGroup) -> bool:
    """Whether nobody is in a group, nor about to be."""
    return group.is_empty if isinstance(group, ConsumerGroup) else group.state is GroupState.EMPTY and not group.pending_join
