"""The groups of one partition of `__consumer_offsets` with their offsets, and the requests about them.

Pure: a request, the time and the state give records and answers. Offsets change only by `apply` and `note`. What
happens in a classic group between two records (joins, silent members) is only in memory, as in Kafka: the next
coordinator knows the last recorded generation, treats its members as live, and continues from there.

Guards: an unused group takes memory only for a short time. The runtime ensures that nothing is returned of a partly
loaded group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from lowtide.broker.coordinator.classic.classic_groups import ClassicGroups
from lowtide.broker.coordinator.classic.classic_record import group_of_record
from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.classic.rebalancing import NO_MEMBER_ID, TimerKey, join_failed, sync_failed
from lowtide.broker.coordinator.group import Group, GroupType
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.committed_offsets import CommittedOffsets
from lowtide.broker.coordinator.member_memory import MemberMemory
from lowtide.broker.coordinator.modern.classic_requests import ClassicRequests
from lowtide.broker.coordinator.modern.consumer_groups import ConsumerGroups
from lowtide.broker.coordinator.modern.consumer_heartbeats import ConsumerHeartbeats
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_groups import GroupResources
from lowtide.broker.coordinator.modern.share_group_states import StatePorts
from lowtide.broker.coordinator.modern.share_groups import NoClassicRequests, ShareGroups, unknown_members
from lowtide.broker.coordinator.modern.share_heartbeats import ShareHeartbeats
from lowtide.broker.coordinator.modern.topic_view import NoCluster, TopicView
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.coordinator.streams.streams_classic import StreamsClassicRequests
from lowtide.broker.coordinator.streams.streams_groups import StreamsGroups
from lowtide.broker.coordinator.streams.streams_heartbeats import StreamsHeartbeats
from lowtide.protocol.consumer_group_records import ConsumerGroupChange
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import GroupMetadata, OffsetCommit, OffsetCommitKey, OffsetCommits
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.share_group_records import ShareGroupChange
from lowtide.protocol.streams_group_records import StreamsGroupChange
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, ProducerId
from lowtide.runtime.random import Random

GROUP_ID_NOT_FOUND_SINCE: Final = 9
"""The first version of OffsetCommit with an error for an unknown group."""

RecordChange: TypeAlias = OffsetCommit | GroupMetadata | ConsumerGroupChange | ShareGroupChange | StreamsGroupChange

GroupChange: TypeAlias = RecordChange | OffsetCommits | InTransaction | EndMarker
"""The content of a record or marker, or of several records that were just appended."""

_EXPIRY: Final[TimerKey] = ("expiry", "", "")

G_contra = TypeVar("G_contra", contravariant=True)


class GroupUpkeep(Protocol[G_contra]):
    """What a service does for the groups of its type."""

    def on_loaded(self, group: G_contra, effects: Effects) -> None:
        """Starts the members' sessions, when all records are applied."""

    def on_unloaded(self, group: G_contra, effects: Effects) -> None:
        """Ends the group here, because another broker coordinates it."""

    def on_timer(self, group: G_contra, key: TimerKey, effects: Effects) -> None:
        """Handles a deadline of the group."""

    def remove(self, group: G_contra, effects: Effects) -> None:
        """Asks for the group's tombstones."""

    def admit_commit(self, group: G_contra, request: OffsetCommitRequest, api_version: int, now_ms: int) -> ErrorCode:
        """Checks whether a commit is allowed."""

    def check_transactional_commit(self, group: G_contra, request: TxnOffsetCommitRequest) -> ErrorCode:
        """Checks whether a commit in a transaction is allowed."""


class MemberRequests(Protocol[G_contra]):
    """The requests of the classic protocol to groups of a type."""

    def join(
        self, group: G_contra, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Handles JoinGroup."""

    def sync(self, group: G_contra, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Handles SyncGroup."""

    def heartbeat(
        self, group: G_contra, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        """Handles Heartbeat."""

    def leave(self, group: G_contra, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """Handles LeaveGroup."""


class Groups:
    """The groups of one partition."""

    def __init__(
        self,
        settings: GroupSettings,
        random: Random,
        memory: MemberMemory | None = None,
        topics: TopicView | None = None,
        admission: GroupAdmission | None = None,
        states: StatePorts | None = None,
    ) -> None:
        """`memory`, `topics` and `admission` are shared by a broker; `states` leads to the share coordinator."""
        self.settings = settings
        self.memory = memory if memory is not None else MemberMemory()
        self.by_id = GroupsById()
        self.admission = admission if admission is not None else GroupAdmission(settings)
        self.committed = CommittedOffsets(settings, self.admission)
        self.timers: Timers[TimerKey] = Timers()
        self.last_removal_offset: Offset = UNKNOWN_OFFSET
        """The last tombstone."""
        resources = GroupResources(
            settings, topics if topics is not None else TopicView(NoCluster()), self.memory, self.admission
        )
        self._classic = ClassicGroups(self.by_id, settings, self.timers, self.memory, random)
        self.consumers = ConsumerGroups(self.by_id, self.timers, resources, self._classic.rebalancing)
        self.heartbeats = ConsumerHeartbeats(self.consumers, random)
        self.shares = ShareGroups(self.by_id, self.timers, resources, states)
        self.share_heartbeats = ShareHeartbeats(self.shares)
        self.streams = StreamsGroups(self.by_id, self.timers, resources)
        self.streams_heartbeats = StreamsHeartbeats(self.streams)
        self._upkeep: dict[GroupType, GroupUpkeep[Any]] = {
            GroupType.CLASSIC: self._classic,
            GroupType.CONSUMER: self.consumers,
            GroupType.SHARE: self.shares,
            GroupType.STREAMS: self.streams,
        }
        self._requests: dict[GroupType, MemberRequests[Any]] = {
            GroupType.CLASSIC: self._classic,
            GroupType.CONSUMER: ClassicRequests(self.consumers, self._classic, random),
            GroupType.SHARE: NoClassicRequests(),
            GroupType.STREAMS: StreamsClassicRequests(self.streams, self._classic),
        }

    # ------------------------------------------------------------------ records
    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.by_id)

    def apply(self, change: GroupChange, offset: Offset) -> None:
        """Applies a record or a marker of a log that is being loaded. Errors: ProtocolError for an impossible group."""
        if isinstance(change, GroupMetadata) and change.value is not None:
            group = group_of_record(change.group, change.value, self.memory)
            if change.group in self.by_id:
                self.by_id[change.group].release()
            self.by_id[change.group] = group
        self.note(change, offset)

    def note(self, change: GroupChange, offset: Offset) -> None:
        """Applies a record or a marker that was just appended; of several records, `offset` is that of the first."""
        if isinstance(change, OffsetCommits):
            self._note_commits(change, offset)
        elif isinstance(change, EndMarker):
            for group_id in self.committed.end_transaction(change.producer_id, is_commit=change.is_commit):
                if group_id in self.by_id:
                    self.by_id[group_id].last_record_offset = offset
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
            for place, (partition, value) in enumerate(commits.values.items(), offset):
                key = OffsetCommitKey(group=commits.group, topic=commits.topic, partition=partition)
                self.committed.apply_pending(producer_id, key, value, place)
        group = self.by_id.get(commits.group)
        if group is None:
            first = next(iter(commits.values.values()))
            group = self._classic.create(commits.group, first.commit_timestamp)
        group.last_record_offset = offset + len(commits.values) - 1

    def _note_record(self, change: RecordChange, offset: Offset, producer_id: ProducerId | None = None) -> None:
        group_id = change.key.group if isinstance(change, OffsetCommit) else change.group
        if change.value is None:
            self.last_removal_offset = offset
        if isinstance(change, ConsumerGroupChange):
            self.consumers.note(change)
        elif isinstance(change, ShareGroupChange):
            self.shares.note(change)
        elif isinstance(change, StreamsGroupChange):
            self.streams.note(change)
        elif isinstance(change, OffsetCommit):
            if producer_id is not None and change.value is not None:
                self.committed.apply_pending(producer_id, change.key, change.value, offset)
            else:
                self.committed.apply(change.key, change.value)
            if change.value is not None and group_id not in self.by_id:
                self._classic.create(group_id, change.value.commit_timestamp)
        elif change.value is None:
            gone = self.by_id.find_classic(group_id)
            if gone is not None:
                self._classic.on_removed(gone)
        elif (prepared := self.consumers.migration.take_prepared(group_id)) is not None:
            self.by_id[group_id] = prepared
        group = self.by_id.get(group_id)
        if group is not None:
            group.last_record_offset = offset

    def on_loaded(self, effects: Effects) -> None:
        """Starts the sessions of all members, and the check for expired offsets."""
        for group_id in self.committed.offsets:
            if group_id not in self.by_id:  # A modern group was here, and its id is still free.
                self._classic.create(group_id, effects.wall_ms)
        for group in list(self.by_id.values()):
            self._upkeep[group.group_type].on_loaded(group, effects)
        self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.retention_check_interval_ms)

    def on_unloaded(self, effects: Effects) -> None:
        """Sends waiting clients to the next coordinator, and drops all groups."""
        for group in self.by_id.values():
            self._upkeep[group.group_type].on_unloaded(group, effects)
        self.by_id.clear()
        self.committed.release()

    def read_barrier(self, group_id: str) -> Offset:
        """Returns the last record that answers about a group depend on; -1 if there is none."""
        group = self.by_id.get(group_id)
        return (
            max(group.last_record_offset, self.last_removal_offset) if group is not None else self.last_removal_offset
        )

    # ------------------------------------------------------------------ time
    def on_timer(self, key: TimerKey, effects: Effects) -> None:
        """Handles a deadline."""
        if key == _EXPIRY:
            self.timers.schedule(_EXPIRY, effects.now_ms + self.settings.retention_check_interval_ms)
            self.expire(effects)
            return
        group = self.by_id.get(key[1])
        if group is not None:
            self._upkeep[group.group_type].on_timer(group, key, effects)

    def expire(self, effects: Effects) -> None:
        """Requests tombstones of expired offsets, and of unused groups without offsets."""
        for group in list(self.by_id.values()):
            if self.committed.expire(group, effects) and group.is_unused:
                self._upkeep[group.group_type].remove(group, effects)

    # ------------------------------------------------------------------ members
    def join(self, request: JoinGroupRequest, client: MemberClient, reply: Reply, effects: Effects) -> None:
        """Handles JoinGroup.

        Errors: those of the group's service, of `GroupAdmission.check_new_group`, INVALID_GROUP_ID,
        INVALID_SESSION_TIMEOUT; UNKNOWN_MEMBER_ID for a member of an unknown group.
        """
        settings, member_id = self.settings, request.member_id
        group = self.by_id.get(request.group_id)
        if not request.group_id:
            effects.answer(reply, join_failed(ErrorCode.INVALID_GROUP_ID, member_id))
        elif not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
            effects.answer(reply, join_failed(ErrorCode.INVALID_SESSION_TIMEOUT, member_id))
        elif group is not None:
            self._requests[group.group_type].join(group, request, client, reply, effects)
        elif member_id != NO_MEMBER_ID:
            effects.answer(reply, join_failed(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        elif (refused := self.admission.check_new_group(effects.now_ms)) != ErrorCode.NONE:
            effects.answer(reply, join_failed(refused, member_id))
        else:
            self._classic.join(self._classic.create(request.group_id, effects.wall_ms), request, client, reply, effects)

    def sync(self, request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """Handles SyncGroup. Errors: those of the group's service, INVALID_GROUP_ID."""
        group = self.by_id.get(request.group_id)
        if not request.group_id:
            effects.answer(reply, sync_failed(ErrorCode.INVALID_GROUP_ID))
        elif group is None:
            effects.answer(reply, sync_failed(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._requests[group.group_type].sync(group, request, reply, effects)

    def heartbeat(
        self, group_id: str, member_id: str, group_instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        """Handles Heartbeat. Errors: those of the group's service, INVALID_GROUP_ID."""
        group = self.by_id.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
        return self._requests[group.group_type].heartbeat(group, member_id, group_instance_id, generation_id, now_ms)

    def leave(self, group_id: str, members: Sequence[MemberIdentity], effects: Effects) -> list[MemberResponse]:
        """Handles LeaveGroup for a group whose id is not empty."""
        group = self.by_id.get(group_id)
        if group is None:
            return unknown_members(members)
        return self._requests[group.group_type].leave(group, members, effects)

    # ------------------------------------------------------------------ offsets
    def admit_commit(self, request: OffsetCommitRequest, api_version: int, effects: Effects) -> ErrorCode:
        """Checks whether a commit is allowed, and extends the member's session.

        Errors: those of the group's `check_commit`, GROUP_ID_NOT_FOUND; for the first commit of a group those of
        `GroupAdmission.check_new_group_of_offsets`.
        """
        group = self.by_id.get(request.group_id)
        if group is not None:
            return self._upkeep[group.group_type].admit_commit(group, request, api_version, effects.now_ms)
        if request.generation_id_or_member_epoch < 0:
            return self.admission.check_new_group_of_offsets(effects.now_ms)
        return ErrorCode.GROUP_ID_NOT_FOUND if api_version >= GROUP_ID_NOT_FOUND_SINCE else ErrorCode.ILLEGAL_GENERATION

    def check_transactional_commit(self, request: TxnOffsetCommitRequest, now_ms: int) -> ErrorCode:
        """Checks whether a commit in a transaction is allowed.

        Errors: those of the group's `check_commit`; INVALID_COMMIT_OFFSET_SIZE above `PENDING_OFFSETS_MAX`.
        """
        if not self.committed.pending.has_room(
            request.producer_id, sum(len(topic.partitions) for topic in request.topics)
        ):
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        group = self.by_id.get(request.group_id)
        if group is not None:
            return self._upkeep[group.group_type].check_transactional_commit(group, request)
        is_outside = request.generation_id_or_member_epoch < 0
        return self.admission.check_new_group_of_offsets(now_ms) if is_outside else ErrorCode.ILLEGAL_GENERATION

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Checks whether offsets may be returned to a member. Errors: those of the group's `check_fetch`."""
        group = self.by_id.get(group_id)
        return group.check_fetch(member_id, member_epoch) if group is not None else ErrorCode.NONE

    def find_for_offset_delete(self, group_id: str) -> Group | ErrorCode:
        """Returns the group whose offsets may be deleted.

        Errors: those of its `check_offset_delete`, GROUP_ID_NOT_FOUND.
        """
        group = self.by_id.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = group.check_offset_delete()
        return group if error == ErrorCode.NONE else error

    def delete_group(self, group_id: str, effects: Effects) -> ErrorCode:
        """Requests the tombstones of a group and its offsets.

        Errors: those of its `check_delete`, GROUP_ID_NOT_FOUND.
        """
        group = self.by_id.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        error = group.check_delete()
        if error == ErrorCode.NONE:
            self.committed.delete_all(group_id, effects)
            self._upkeep[group.group_type].remove(group, effects)
        return error
