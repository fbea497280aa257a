"""Share groups of one coordinator: heartbeats of members, the group's epoch, its target, and the states of its share partitions.

Guards: the group's epoch rises with every change of its members, what they subscribe to, and the partitions that may be assigned; a
partition may be assigned when its state has begun; a member that is late is out, and if the record of that can't be kept, it is tried
again.

Source: Kafka's `GroupMetadataManager.shareGroupHeartbeat`, `shareGroupLeave`; KIP-932.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.classic.rebalancing import TimerKey, join_failed, sync_failed
from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.group_decision import GroupRefusal
from lowtide.broker.coordinator.modern.group_times import ShareGroupTimes
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.migration import Shared
from lowtide.broker.coordinator.modern.modern_member import NOTHING, Assignment, ModernMember, target_record
from lowtide.broker.coordinator.modern.share_group import ShareGroup, bytes_of
from lowtide.broker.coordinator.modern.share_start import ShareStart, StatePorts, keep, keep_empty
from lowtide.broker.coordinator.modern.simple_assignor import assign
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch, TargetTopicPartitions
from lowtide.protocol.errors import ErrorCode, ProtocolError
from lowtide.protocol.messages.join_group import JoinGroupRequest
from lowtide.protocol.messages.leave_group import MemberIdentity, MemberResponse
from lowtide.protocol.messages.offset_commit import OffsetCommitRequest
from lowtide.protocol.messages.share_group_heartbeat import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareHeartbeatAssignment,
    ShareHeartbeatTopicPartitions,
)
from lowtide.protocol.messages.sync_group import SyncGroupRequest
from lowtide.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from lowtide.protocol.share_group_records import (
    ShareGroupChange,
    ShareGroupEpoch,
    ShareMemberCurrent,
    ShareMemberSubscription,
    ShareRecordType,
)

RETRY_MS: Final = 500
"""How long what is due waits that could not be kept. Source: `CoordinatorRuntime.EventBasedCoordinatorTimer`."""

ASSIGNOR: Final = "simple"


def heartbeat_failed(error: ErrorCode, message: str | None = None) -> ShareGroupHeartbeatResponse:
    """The answer to a heartbeat that failed."""
    return ShareGroupHeartbeatResponse(error_code=error, error_message=message or None)


class ShareGroups:
    """The service of the share groups among those of one coordinator."""

    def __init__(
        self,
        by_id: GroupsById,
        settings: GroupSettings,
        timers: Timers[TimerKey],
        shared: Shared,
        admission: GroupAdmission,
        ports: StatePorts | None = None,
    ) -> None:
        """`ports` lead to the share coordinator; None where share groups aren't served."""
        self.by_id = by_id
        self.settings = settings
        self.timers = timers
        self.topics = shared.topics
        self.memory = shared.memory
        self.states = ShareStart(by_id, settings, shared, admission, ports)
        self._admission = admission
        self._times = ShareGroupTimes(settings, shared.topics)

    # ------------------------------------------------------------------ records
    def note(self, change: ShareGroupChange) -> ShareGroup | None:
        """Take over what a record says: the group, None where there is none any more.

        Errors: ProtocolError for one of another group.
        """
        group = self.by_id.find_share(change.group)
        if group is None:
            if change.value is None:
                return None
            if change.group in self.by_id:
                message = f"a record of {change.kind.name} for {change.group}, which is no share group"
                raise ProtocolError(message)
            group = self.by_id[change.group] = ShareGroup(change.group, self.memory)
        if change.kind is ShareRecordType.GROUP and change.value is None:
            del self.by_id[change.group]
            group.close()
            self._cancel_timers(group, group.members)
            return None
        group.apply(change)
        if (
            change.kind is ShareRecordType.MEMBER and change.value is None
        ):  # Not before: one that can't be removed is still waited for.
            self._cancel_timers(group, [change.name])
        return group

    def on_loaded(self, group: ShareGroup, effects: Effects) -> None:
        """From now on members have to show that they live.

        States that were about to begin are asked for by the next heartbeat.
        """
        for member in group.members.values():
            self._extend_session(group, member.member_id, effects.now_ms)
        self.timers.cancel(("assignment", group.group_id, ""))

    @staticmethod
    def on_unloaded(group: ShareGroup, _effects: Effects) -> None:
        """Another broker coordinates the group: no request waits in it."""
        group.close()

    def remove(self, group: ShareGroup, effects: Effects) -> None:
        """Ask for the group's records to be taken back, in the order in which Kafka does."""
        for kind in (ShareRecordType.CURRENT, ShareRecordType.TARGET):
            for member_id in dict.fromkeys((*group.members, *group.targets)):
                keep(group, kind, member_id, None, effects)
        keep(group, ShareRecordType.TARGET_EPOCH, "", None, effects)
        for member_id in group.members:
            keep(group, ShareRecordType.MEMBER, member_id, None, effects)
        keep(group, ShareRecordType.STATES, "", None, effects)
        keep(group, ShareRecordType.GROUP, "", None, effects)

    @staticmethod
    def admit_commit(_group: ShareGroup, _request: OffsetCommitRequest, _api_version: int, _now_ms: int) -> ErrorCode:
        """A share group has no committed offsets.

        Errors: GROUP_ID_NOT_FOUND. Source: `ShareGroup.validateOffsetCommit`.
        """
        return ErrorCode.GROUP_ID_NOT_FOUND

    @staticmethod
    def check_transactional_commit(_group: ShareGroup, _request: TxnOffsetCommitRequest) -> ErrorCode:
        """As `admit_commit`; producers have one code for that, after which they abort."""
        return ErrorCode.ILLEGAL_GENERATION

    # ------------------------------------------------------------------ heartbeats
    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """Answer a heartbeat that `check_heartbeat` lets through.

        Errors: GROUP_ID_NOT_FOUND, GROUP_MAX_SIZE_REACHED, COORDINATOR_LOAD_IN_PROGRESS, UNKNOWN_MEMBER_ID,
        FENCED_MEMBER_EPOCH.
        """
        beat = self._leave if request.member_epoch == LEAVE_EPOCH else self._go_on
        refusal = beat(request, client, reply, effects)
        if refusal is not None:
            effects.answer(reply, heartbeat_failed(refusal.error, refusal.message))

    def _go_on(
        self, request: ShareGroupHeartbeatRequest, client: MemberClient, reply: Reply, effects: Effects
    ) -> GroupRefusal | None:
        joins, member_id = request.member_epoch == JOIN_EPOCH, request.member_id
        group = self._open(request.group_id, effects, creates=joins)
        if isinstance(group, GroupRefusal):
            return group
        is_new = group.group_id not in self.by_id
        known = self._find_member(group, member_id, request.member_epoch)
        if isinstance(known, GroupRefusal):
            return known
        updated = _updated(known, request, client)
        more_bytes = bytes_of(updated) - (bytes_of(known) if member_id in group.members else 0)
        if not self.memory.has_room(group.held_bytes, more_bytes):
            self.memory.refused_count += 1
            return GroupRefusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED, "The members of the groups here hold as much as they may."
            )
        changed = member_id not in group.members or updated.topic_names != known.topic_names
        if member_id not in group.members or not updated.says_the_same_as(known):
            keep(group, ShareRecordType.MEMBER, member_id, _subscription(updated), effects)
        epoch = self._epoch_after(group, known, updated, changed or is_new, effects)
        target_epoch, target = self._target_after(group, epoch, updated, effects)
        after = updated
        if known.member_epoch != target_epoch or updated.assigned != target:
            after = msgspec.structs.replace(
                updated, member_epoch=target_epoch, previous_epoch=known.member_epoch, assigned=target
            )
            keep(group, ShareRecordType.CURRENT, member_id, _current(after), effects)
        self.states.begin(group, (known, updated), epoch, effects)
        self._extend_session(group, member_id, effects.now_ms)
        says_all = request.subscribed_topic_names is not None
        response = ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self._times.heartbeat_interval_ms(group.group_id),
            assignment=_assignment_rows(after.assigned)
            if joins or says_all or after.assigned != known.assigned
            else None,
        )
        if not effects.changes:
            effects.barrier = max(effects.barrier, group.last_record_offset)
        effects.answer_when_committed(reply, response, heartbeat_failed)
        return None

    def _open(self, group_id: str, effects: Effects, *, creates: bool) -> ShareGroup | GroupRefusal:
        """The group of a heartbeat, which may be a new one if there is room for it."""
        known = self.by_id.find_share(group_id)
        if known is not None:
            if known.is_deleting:
                return GroupRefusal(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                    f"Share group {group_id}, or where it continues, is being changed.",
                )
            return known
        if group_id in self.by_id or not creates:
            return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        refused = self._admission.check_new_group(effects.now_ms)
        if refused == ErrorCode.NONE:
            return ShareGroup(group_id)
        return GroupRefusal(refused, "The broker has as many groups as it may have, or too many begin at once.")

    def _find_member(self, group: ShareGroup, member_id: str, epoch: int) -> ModernMember | GroupRefusal:
        """The member that a heartbeat is from, as it is known, or a new one."""
        known = group.members.get(member_id)
        if known is None:
            if epoch != JOIN_EPOCH:
                return GroupRefusal(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
                )
            if len(group.members) >= self.settings.share_max_size:
                return GroupRefusal(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The group has {len(group.members)} members, as many as it may have.",
                )
            return ModernMember(member_id=member_id)
        if epoch in (JOIN_EPOCH, known.member_epoch) or epoch == known.previous_epoch:
            return known
        message = f"{member_id} is in epoch {known.member_epoch}, not {epoch}; it must join again."
        return GroupRefusal(ErrorCode.FENCED_MEMBER_EPOCH, message)

    def _leave(
        self, request: ShareGroupHeartbeatRequest, _client: MemberClient, reply: Reply, effects: Effects
    ) -> GroupRefusal | None:
        group = self.by_id.find_share(request.group_id)
        if group is None:
            return GroupRefusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a share group.")
        if request.member_id not in group.members:
            return GroupRefusal(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is no member.")
        self._fence(group, request.member_id, effects)
        response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
        effects.answer_when_committed(reply, response, heartbeat_failed)
        return None

    # ------------------------------------------------------------------ epoch, target
    def _hash(self, group: ShareGroup, names: Iterable[str]) -> int:
        """Stands for the topics of a group and the partitions of them that may be assigned."""
        named = list(names)
        return self.topics.hash_of(named) ^ group.states.hash_of(self.topics.ids_of(named))

    def _epoch_after(
        self,
        group: ShareGroup,
        old: ModernMember,
        new: ModernMember,
        rises: bool,  # noqa: FBT001
        effects: Effects,
    ) -> int:
        image_number = self.topics.image_number
        if not rises and group.checked_image == image_number:
            return group.group_epoch
        metadata_hash = self._hash(group, group.subscriptions.names_after(old, new))
        if not rises and metadata_hash == group.metadata_hash:
            group.checked_image = image_number
            return group.group_epoch
        epoch = group.group_epoch + 1
        keep(group, ShareRecordType.GROUP, "", ShareGroupEpoch(epoch=epoch, metadata_hash=metadata_hash), effects)
        return epoch

    def _target_after(
        self, group: ShareGroup, epoch: int, new: ModernMember, effects: Effects
    ) -> tuple[int, Assignment]:
        """The epoch of the target, and what a member has to have in it; a new target waits for its time since the last one."""
        if epoch > group.target_epoch:
            since_ms = effects.wall_ms - group.assigned_wall_ms
            wait_ms = self._times.assignment_interval_ms(group.group_id) - since_ms if since_ms >= 0 else 0
            if wait_ms > 0:
                if self.timers.deadline_of(("assignment", group.group_id, "")) is None:
                    self.timers.schedule(("assignment", group.group_id, ""), effects.now_ms + wait_ms)
            else:
                made = self._assign(group, epoch, {**group.members, new.member_id: new}, effects)
                return epoch, made[new.member_id]
        return group.target_epoch, self._subscribed(group.targets.get(new.member_id, NOTHING), new)

    def _subscribed(self, target: Assignment, member: ModernMember) -> Assignment:
        """Returns the part of a target that a member still subscribes to, of topics that still exist."""
        ids = self.topics.ids_of(member.topic_names)
        return (
            target
            if target.keys() <= ids
            else {topic_id: numbers for topic_id, numbers in target.items() if topic_id in ids}
        )

    def _assign(
        self, group: ShareGroup, epoch: int, members: Mapping[str, ModernMember], effects: Effects
    ) -> dict[str, Assignment]:
        states, ids = group.states.initialized, self.topics.ids_of
        subscriptions = {name: ids(member.topic_names) for name, member in members.items()}
        counts = self.topics.partition_counts(frozenset().union(*subscriptions.values()))
        partitions = {
            topic_id: sorted(number for number in states[topic_id][1] if number < count)
            for topic_id, count in counts.items()
            if topic_id in states
        }
        made = assign(subscriptions, partitions, group.targets)
        for name, target in made.items():
            if name not in group.targets or group.targets[name] != target:
                keep(group, ShareRecordType.TARGET, name, target_record(target), effects)
        value = TargetAssignmentEpoch(assignment_epoch=epoch, assignment_timestamp=effects.wall_ms)
        keep(group, ShareRecordType.TARGET_EPOCH, "", value, effects)
        return made

    # ------------------------------------------------------------------ letting go, time
    def _fence(self, group: ShareGroup, member_id: str, effects: Effects) -> None:
        for kind in (ShareRecordType.CURRENT, ShareRecordType.TARGET, ShareRecordType.MEMBER):
            keep(group, kind, member_id, None, effects)
        names = {name for key, member in group.members.items() if key != member_id for name in member.topic_names}
        value = ShareGroupEpoch(epoch=group.group_epoch + 1, metadata_hash=self._hash(group, names))
        if len(group.members) == 1:
            keep_empty(group, value, effects)
        else:
            keep(group, ShareRecordType.GROUP, "", value, effects)

    def on_timer(self, group: ShareGroup, key: TimerKey, effects: Effects) -> None:
        """A member of a group is late, or a new target is due."""
        if key[0] == "assignment":
            if group.members and group.group_epoch > group.target_epoch:
                self._assign(group, group.group_epoch, group.members, effects)
        elif key[2] in group.members:
            self._fence(group, key[2], effects)
        effects.then.append(partial(self._retry, key))

    def _retry(self, key: TimerKey, error: ErrorCode, effects: Effects) -> None:
        group = self.by_id.find_share(key[1])
        if error == ErrorCode.NONE or group is None:
            return
        if key[2] in group.members if key[2] else group.group_epoch > group.target_epoch:
            self.timers.schedule(key, effects.now_ms + RETRY_MS)

    def _extend_session(self, group: ShareGroup, member_id: str, now_ms: int) -> None:
        self.timers.schedule(
            ("heartbeat", group.group_id, member_id), now_ms + self._times.session_timeout_ms(group.group_id)
        )

    def _cancel_timers(self, group: ShareGroup, members: Iterable[str]) -> None:
        for member_id in members:
            self.timers.cancel(("heartbeat", group.group_id, member_id))
        if group.is_dead:
            self.timers.cancel(("assignment", group.group_id, ""))


class NoClassicRequests:
    """Requests of the classic protocol to share groups, which take no such members.

    Source: `GroupMetadataManager.classicGroupJoin`.
    """

    @staticmethod
    def join(
        _group: ShareGroup, request: JoinGroupRequest, _client: MemberClient, reply: Reply, effects: Effects
    ) -> None:
        """JoinGroup. Errors: INCONSISTENT_GROUP_PROTOCOL."""
        effects.answer(reply, join_failed(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id))

    @staticmethod
    def sync(_group: ShareGroup, _request: SyncGroupRequest, reply: Reply, effects: Effects) -> None:
        """SyncGroup. Errors: UNKNOWN_MEMBER_ID."""
        effects.answer(reply, sync_failed(ErrorCode.UNKNOWN_MEMBER_ID))

    @staticmethod
    def heartbeat(
        _group: ShareGroup, _member_id: str, _instance_id: str | None, _generation_id: int, _now_ms: int
    ) -> ErrorCode:
        """Heartbeat. Errors: UNKNOWN_MEMBER_ID."""
        return ErrorCode.UNKNOWN_MEMBER_ID

    @staticmethod
    def leave(_group: ShareGroup, members: Sequence[MemberIdentity], _effects: Effects) -> list[MemberResponse]:
        """LeaveGroup. Errors: UNKNOWN_MEMBER_ID."""
        return [
            MemberResponse(
                member_id=row.member_id, group_instance_id=row.group_instance_id, error_code=ErrorCode.UNKNOWN_MEMBER_ID
            )
            for row in members
        ]


def check_heartbeat(request: ShareGroupHeartbeatRequest) -> GroupRefusal | None:
    """Whether a heartbeat says what it must. Errors: INVALID_REQUEST.

    Source: `GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid`, with its order.
    """
    names = (request.member_id, request.group_id, request.rack_id)
    for field, name in zip(("MemberId", "GroupId", "RackId"), names, strict=True):
        if name is not None and not name.strip():
            return GroupRefusal(ErrorCode.INVALID_REQUEST, f"{field} can't be empty.")
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        return GroupRefusal(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        return GroupRefusal(
            ErrorCode.INVALID_REQUEST,
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -1.",
        )
    return None


def _updated(member: ModernMember, request: ShareGroupHeartbeatRequest, client: MemberClient) -> ModernMember:
    """The member with what a heartbeat says of it; null leaves a thing as it was."""
    names = request.subscribed_topic_names
    return msgspec.structs.replace(
        member,
        rack_id=request.rack_id if request.rack_id is not None else member.rack_id,
        topic_names=member.topic_names if names is None else frozenset(names),
        client_id=client.client_id,
        client_host=client.host,
    )


def _subscription(member: ModernMember) -> ShareMemberSubscription:
    return ShareMemberSubscription(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
    )


def _current(member: ModernMember) -> ShareMemberCurrent:
    return ShareMemberCurrent(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        assigned_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in member.assigned.items()
        ],
    )


def _assignment_rows(assignment: Assignment) -> ShareHeartbeatAssignment:
    return ShareHeartbeatAssignment(
        topic_partitions=[
            ShareHeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(numbers))
            for topic_id, numbers in assignment.items()
        ]
    )
