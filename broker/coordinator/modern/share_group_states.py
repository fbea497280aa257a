"""The states of a share group's partitions: when they are requested, and when they are deleted.

In the partitions that a topic has when a group first sees it, the group starts where `share.auto.offset.reset` says.
Partitions that are added later start at 0, so that records written before the group sees them are not lost
(KAFKA-20742).

Guards: a request is recorded before it is sent; one that has no answer within
`group.share.initialize.retry.interval.ms` is sent again with the next heartbeat. Initializing twice is harmless.

Source: Kafka's `GroupMetadataManager.maybeCreateInitializeShareGroupStateRequest`, `initializeShareGroupState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from lowtide.broker.coordinator.modern.group_decision import GroupDecision
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.modern_group import INITIAL_EPOCH
from lowtide.broker.coordinator.modern.modern_groups import GroupResources
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import InitializingTopic, KnownStates, ShareGroup
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import ShareRecordType
from lowtide.protocol.share_state_records import UNKNOWN_START
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicId

Starts: TypeAlias = Mapping[TopicId, Mapping[int, Offset]]
"""Start offsets by topic and partition; `UNKNOWN_START` if the leader finds it by `share.auto.offset.reset`."""

ADDED_START: Final[Offset] = 0
"""The start offset of partitions that were added to a topic."""


class StatePorts(Protocol):
    """What share groups need of the share coordinator."""

    def initialize(self, group_id: str, state_epoch: int, wanted: Starts) -> None:
        """Requests states of share partitions, and calls `ShareGroupStates.on_initialized` with the outcome."""


class ShareGroupStates:
    """The states of the share groups of one coordinator."""

    def __init__(self, by_id: GroupsById, resources: GroupResources, ports: StatePorts | None) -> None:
        """`ports` lead to the share coordinator; None if the broker serves no share groups."""
        self.by_id = by_id
        self.settings, self.topics, self.memory, self._admission = resources
        self.ports = ports

    # ------------------------------------------------------------------ initializing
    def initialize_missing(
        self,
        decision: GroupDecision[ShareGroup],
        member: tuple[ModernMember, ModernMember],
        epoch: int,
        effects: Effects,
    ) -> None:
        """Requests the states that partitions lack, unless a recent request for them is open.

        `member` is the member that sent a heartbeat, before and after it. A request from the future was made when the
        wall clock was wrong, so it is not recent.
        """
        group = decision.group
        states, wanted = group.states, dict[TopicId, Mapping[int, Offset]]()
        initializing, first_counts = dict(states.initializing), dict(states.first_counts)
        oldest_ms = effects.wall_ms - self.settings.share_initialize_retry_ms
        for name in sorted(group.subscriptions.names_after(*member)):
            topic = self.topics.image.topics.get(name)
            if topic is None:
                continue
            topic_id, count = topic.topic_id, len(topic.partitions)
            initialized = states.initialized_of(topic_id)
            if len(initialized) >= count:
                continue
            missing = frozenset(range(count)) - initialized
            requested = initializing.get(topic_id)
            is_recent = requested is not None and oldest_ms < requested.since_ms <= effects.wall_ms
            if requested is not None and is_recent and missing <= requested.partitions:
                continue
            first = first_counts[topic_id] = states.first_count(topic_id, count)
            wanted[topic_id] = {number: UNKNOWN_START if number < first else ADDED_START for number in sorted(missing)}
            initializing[topic_id] = InitializingTopic(name, missing, effects.wall_ms)
        if wanted:
            deleting = states.deleting_without(wanted)
            kept = KnownStates(initializing, states.initialized, deleting, first_counts)
            decision.keep(ShareRecordType.STATES, "", kept.record())
            effects.then.append(partial(self._send_request, group.group_id, epoch, wanted))

    def _send_request(self, group_id: str, epoch: int, wanted: Starts, error: ErrorCode, _: Effects) -> None:
        if error == ErrorCode.NONE and self.ports is not None and self.by_id.find_share(group_id) is not None:
            self.ports.initialize(group_id, epoch, wanted)

    def on_initialized(self, group_id: str, begun: Mapping[TopicId, Iterable[int]], effects: Effects) -> None:
        """Lets share partitions be assigned whose states are initialized. The others are requested again later."""
        group = self.by_id.find_share(group_id)
        if group is None:
            return
        states = group.states
        initializing, initialized = dict(states.initializing), dict(states.initialized)
        for topic_id, numbers in begun.items():
            requested = initializing.get(topic_id)
            if requested is None:
                continue
            done = requested.partitions & frozenset(numbers)
            initialized[topic_id] = (requested.name, states.initialized_of(topic_id) | done)
            left = requested.partitions - done
            if left:
                initializing[topic_id] = msgspec.structs.replace(requested, partitions=left)
            else:
                del initializing[topic_id]
        _keep_states(
            group, msgspec.structs.replace(states, initializing=initializing, initialized=initialized), effects
        )

    def initialize_again(
        self, group_id: str, wanted: Mapping[TopicId, tuple[str, Iterable[int]]], reply: Reply, effects: Effects
    ) -> None:
        """Records that states are initialized again in a later epoch, and answers with that epoch.

        Creates a group that does not exist. Errors: as of `begin_deletion`, and GROUP_MAX_SIZE_REACHED.
        Source: `GroupMetadataManager.alterShareGroupOffsets`.
        """
        if group_id not in self.by_id:
            if not wanted:
                effects.answer(reply, INITIAL_EPOCH)
                return
            refused = self._admission.check_new_group(effects.now_ms)
            if refused != ErrorCode.NONE:
                effects.answer(reply, refused)
                return
            # Before its records: no member may join until the states are initialized.
            self.by_id[group_id] = ShareGroup(group_id, self.memory)
        group = self._lock(group_id, reply, effects)
        if group is None:
            return
        states = group.states
        initializing, first_counts = dict(states.initializing), dict(states.first_counts)
        counts = self.topics.partition_counts(wanted)
        for topic_id, (name, numbers) in wanted.items():
            if topic_id in counts:
                first_counts[topic_id] = states.first_count(topic_id, counts[topic_id])
            all_numbers = frozenset(numbers) | states.initializing_of(topic_id)
            initializing[topic_id] = InitializingTopic(name, all_numbers, effects.wall_ms)
        decision, epoch = GroupDecision(group), group.group_epoch + 1
        decision.keep_epoch(epoch, group.metadata_hash)
        decision.keep_target_epoch(epoch, group.assigned_wall_ms)
        kept = KnownStates(initializing, states.initialized, states.deleting_without(wanted), first_counts)
        decision.keep(ShareRecordType.STATES, "", kept.record())
        decision.carry_out(effects)
        effects.answer_when_committed(reply, epoch, partial(self._failed, group_id))

    # ------------------------------------------------------------------ deleting
    def begin_deletion(
        self, group_id: str, reply: Reply, effects: Effects, topics: Iterable[TopicId] | None = None
    ) -> None:
        """Records that states of a group are being deleted: those of some topics, or all.

        Answers the group's epoch. The group takes no member until `unlock`.
        Errors: those of `ShareGroup.check_delete` and of `append_error`.
        """
        group = self._lock(group_id, reply, effects)
        if group is None:
            return
        names = group.states.names()
        gone = frozenset(names if topics is None else topics)
        deleting = {**group.states.deleting, **{topic_id: name for topic_id, name in names.items() if topic_id in gone}}
        _keep_states(group, group.states.without(gone, deleting), effects)
        effects.answer_when_committed(reply, group.group_epoch, partial(self._failed, group_id))

    def note_deleted(self, group_id: str, topics: Iterable[TopicId], effects: Effects) -> None:
        """Records that the states of these topics are deleted."""
        group, gone = self.by_id.find_share(group_id), frozenset(topics)
        if group is not None and gone:
            deleting = group.states.deleting_without(gone)
            _keep_states(group, msgspec.structs.replace(group.states, deleting=deleting), effects)

    def forget_topics(self, deleted: Iterable[TopicId], effects: Effects) -> None:
        """Removes topics that were deleted from all groups. The share coordinator removes their states by itself."""
        gone = frozenset(deleted)
        for group in list(self.by_id.values()):
            if isinstance(group, ShareGroup) and any(group.states.includes(topic_id) for topic_id in gone):
                _keep_states(group, group.states.without(gone, group.states.deleting_without(gone)), effects)

    # ------------------------------------------------------------------ lock
    def _lock(self, group_id: str, reply: Reply, effects: Effects) -> ShareGroup | None:
        """Locks a group without members against joins until `unlock`. Returns None if an error was answered."""
        group = self.by_id.find_share(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is not None and error == ErrorCode.NONE and group.is_deleting:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if group is None or error != ErrorCode.NONE:
            effects.answer(reply, error)
            return None
        group.is_deleting = True
        return group

    def unlock(self, group_id: str) -> None:
        """Lets a group take members again, or be deleted."""
        group = self.by_id.find_share(group_id)
        if group is not None:
            group.is_deleting = False

    def _failed(self, group_id: str, why: ErrorCode) -> ErrorCode:
        self.unlock(group_id)
        group = self.by_id.find_share(group_id)
        if group is not None and group.last_record_offset == UNKNOWN_OFFSET:  # A new group whose records failed.
            del self.by_id[group_id]
            group.close()
        return why


def _keep_states(group: ShareGroup, states: KnownStates, effects: Effects) -> None:
    decision = GroupDecision(group)
    decision.keep(ShareRecordType.STATES, "", states.record())
    decision.carry_out(effects)
