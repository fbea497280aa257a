"""How the states of a share group's partitions begin: asked of the share coordinator, and assigned when they have begun.

In the partitions that a topic has when a group first knows it, the group begins where `share.auto.offset.reset` says. Partitions that are
added later begin at 0: what is written to them before the group notices them is not lost (KAFKA-20742).

Guards: what was asked for is in a record before it is asked for; what isn't answered in `group.share.initialize.retry.interval.ms` is asked
for again, by the next heartbeat. Beginning is repeatable, so that costs nothing.

Source: Kafka's `GroupMetadataManager.maybeCreateInitializeShareGroupStateRequest`, `initializeShareGroupState`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from lowtide.broker.coordinator.group_admission import GroupAdmission
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.modern.groups_by_id import GroupsById
from lowtide.broker.coordinator.modern.migration import Shared
from lowtide.broker.coordinator.modern.modern_member import ModernMember
from lowtide.broker.coordinator.modern.share_group import INITIAL_EPOCH, InitializingTopic, KnownStates, ShareGroup
from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.protocol.consumer_group_records import TargetAssignmentEpoch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.share_group_records import (
    ShareChangeValue,
    ShareGroupChange,
    ShareGroupEpoch,
    ShareRecordType,
    encode_share_change,
)
from lowtide.protocol.share_state_records import UNKNOWN_START
from lowtide.protocol.types import UNKNOWN_OFFSET, Offset, TopicId

Starts: TypeAlias = Mapping[TopicId, Mapping[int, Offset]]
"""Where partitions are to begin: `UNKNOWN_START` where the leader finds that by `share.auto.offset.reset`."""

ADDED_START: Final[Offset] = 0
"""Where partitions begin that were added to a topic."""


class StatePorts(Protocol):
    """What share groups need of the share coordinator."""

    def initialize(self, group_id: str, state_epoch: int, wanted: Starts) -> None:
        """Have the states of share partitions begin, and then `ShareGroups.on_initialized`."""
        ...


def keep(group: ShareGroup, kind: ShareRecordType, name: str, value: ShareChangeValue | None, effects: Effects) -> None:
    """Ask for a record about a share group, or with None for that which takes it back."""
    change = ShareGroupChange(kind, group.group_id, name, value)
    effects.records.append(encode_share_change(change))
    effects.changes.append(change)


def keep_empty(group: ShareGroup, value: ShareGroupEpoch, effects: Effects) -> None:
    """Ask for records that say that a group without members is in an epoch, and so is its target, which has nothing (KAFKA-20442)."""
    keep(group, ShareRecordType.GROUP, "", value, effects)
    target = TargetAssignmentEpoch(assignment_epoch=value.epoch, assignment_timestamp=group.assigned_wall_ms)
    keep(group, ShareRecordType.TARGET_EPOCH, "", target, effects)


class ShareStart:
    """The states of the share groups of one coordinator."""

    def __init__(
        self,
        by_id: GroupsById,
        settings: GroupSettings,
        shared: Shared,
        admission: GroupAdmission,
        ports: StatePorts | None,
    ) -> None:
        """`ports` lead to the share coordinator; None where share groups aren't served."""
        self.by_id = by_id
        self.settings = settings
        self.topics = shared.topics
        self.memory = shared.memory
        self.ports = ports
        self._admission = admission

    def begin(self, group: ShareGroup, member: tuple[ModernMember, ModernMember], epoch: int, effects: Effects) -> None:
        """Have the states begin of partitions that have none, unless that was asked for a while ago only.

        `member` is the one that has shown itself, before and after what it says.
        """
        states, wanted = group.states, dict[TopicId, Mapping[int, Offset]]()
        initializing, first_counts = dict(states.initializing), dict(states.first_counts)
        fresh_ms = effects.wall_ms - self.settings.share_initialize_retry_ms
        for name in sorted(group.subscriptions.names_after(*member)):
            topic = self.topics.image.topics.get(name)
            if topic is None:
                continue
            has = states.initialized.get(topic.topic_id, ("", frozenset()))[1]
            if len(has) >= len(topic.partitions):
                continue
            missing = frozenset(range(len(topic.partitions))) - has
            asked = initializing.get(topic.topic_id)
            if asked is not None and asked.since_ms > fresh_ms and missing <= asked.partitions:
                continue
            first = first_counts[topic.topic_id] = states.first_count(topic.topic_id, len(topic.partitions))
            wanted[topic.topic_id] = {
                number: UNKNOWN_START if number < first else ADDED_START for number in sorted(missing)
            }
            initializing[topic.topic_id] = InitializingTopic(name, missing, effects.wall_ms)
        if not wanted:
            return
        deleting = {topic_id: name for topic_id, name in states.deleting.items() if topic_id not in wanted}
        kept = KnownStates(
            initializing=initializing, initialized=states.initialized, deleting=deleting, first_counts=first_counts
        )
        _keep_states(group, kept, effects)
        effects.then.append(partial(self._ask_to_begin, group.group_id, epoch, wanted))

    def _ask_to_begin(self, group_id: str, epoch: int, wanted: Starts, error: ErrorCode, _: Effects) -> None:
        if error == ErrorCode.NONE and self.ports is not None and self.by_id.find_share(group_id) is not None:
            self.ports.initialize(group_id, epoch, wanted)

    def on_initialized(self, group_id: str, begun: Mapping[TopicId, Iterable[int]], effects: Effects) -> None:
        """The states of these share partitions have begun: they may be assigned.

        What isn't among them is asked for again later.
        """
        group = self.by_id.find_share(group_id)
        if group is None:
            return
        initializing, initialized = dict(group.states.initializing), dict(group.states.initialized)
        for topic_id, numbers in begun.items():
            asked = initializing.get(topic_id)
            if asked is None:
                continue
            done = asked.partitions & frozenset(numbers)
            initialized[topic_id] = (asked.name, initialized.get(topic_id, ("", frozenset()))[1] | done)
            left = asked.partitions - done
            if left:
                initializing[topic_id] = msgspec.structs.replace(asked, partitions=left)
            else:
                del initializing[topic_id]
        _keep_states(
            group, msgspec.structs.replace(group.states, initializing=initializing, initialized=initialized), effects
        )

    def begin_deletion(
        self, group_id: str, reply: Reply, effects: Effects, topics: Iterable[TopicId] | None = None
    ) -> None:
        """Keep that states of a group are about to end, of all its topics or of some: who loads the log doesn't take them for begun ones.

        Answers NONE, or, where topics are named, the group's epoch. Until `end_deletion` the group takes no member.
        Errors: those of `ShareGroup.check_delete` and of `append_error`.
        """
        group = self._take(group_id, reply, effects)
        if group is None:
            return
        states = group.states
        names = {topic_id: row.name for topic_id, row in states.initializing.items()}
        names |= {topic_id: name for topic_id, (name, _) in states.initialized.items()}
        gone = frozenset(names if topics is None else topics)
        kept = KnownStates(
            initializing={topic_id: row for topic_id, row in states.initializing.items() if topic_id not in gone},
            initialized={topic_id: row for topic_id, row in states.initialized.items() if topic_id not in gone},
            deleting={**states.deleting, **{topic_id: name for topic_id, name in names.items() if topic_id in gone}},
            first_counts=states.first_counts,
        )
        _keep_states(group, kept, effects)
        effects.answer_when_committed(
            reply, ErrorCode.NONE if topics is None else group.group_epoch, partial(self._failed, group_id)
        )

    def begin_again(
        self, group_id: str, wanted: Mapping[TopicId, tuple[str, Iterable[int]]], reply: Reply, effects: Effects
    ) -> None:
        """Keep that states of a group are about to begin again, in a later epoch, with which it answers.

        A group that isn't there is created. Errors: as of `begin_deletion`, and GROUP_MAX_SIZE_REACHED.
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
            self.by_id[group_id] = ShareGroup(
                group_id, self.memory
            )  # Before its records: no member may join until it is done.
        group = self._take(group_id, reply, effects)
        if group is None:
            return
        states, initializing, first_counts = (
            group.states,
            dict(group.states.initializing),
            dict(group.states.first_counts),
        )
        counts = self.topics.partition_counts(wanted)
        for topic_id, (name, numbers) in wanted.items():
            if topic_id in counts:
                first_counts[topic_id] = states.first_count(topic_id, counts[topic_id])
            asked = initializing.get(topic_id)
            all_numbers = frozenset(numbers) | (asked.partitions if asked is not None else frozenset())
            initializing[topic_id] = InitializingTopic(name, all_numbers, effects.wall_ms)
        epoch = group.group_epoch + 1
        value = ShareGroupEpoch(epoch=epoch, metadata_hash=group.metadata_hash)
        keep_empty(group, value, effects)
        deleting = {topic_id: name for topic_id, name in states.deleting.items() if topic_id not in wanted}
        kept = KnownStates(
            initializing=initializing, initialized=states.initialized, deleting=deleting, first_counts=first_counts
        )
        _keep_states(group, kept, effects)
        effects.answer_when_committed(reply, epoch, partial(self._failed, group_id))

    def note_deleted(self, group_id: str, topics: Iterable[TopicId], effects: Effects) -> None:
        """The states of these topics have ended."""
        group, gone = self.by_id.find_share(group_id), frozenset(topics)
        if group is not None and gone:
            deleting = {topic_id: name for topic_id, name in group.states.deleting.items() if topic_id not in gone}
            _keep_states(group, msgspec.structs.replace(group.states, deleting=deleting), effects)

    def _take(self, group_id: str, reply: Reply, effects: Effects) -> ShareGroup | None:
        """A group without members, which takes none until `end_deletion`; None where that was answered to be impossible."""
        group = self.by_id.find_share(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is not None and error == ErrorCode.NONE and group.is_deleting:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if group is None or error != ErrorCode.NONE:
            effects.answer(reply, error)
            return None
        group.is_deleting = True
        return group

    def _failed(self, group_id: str, why: ErrorCode) -> ErrorCode:
        self.end_deletion(group_id)
        group = self.by_id.find_share(group_id)
        if group is not None and group.last_record_offset == UNKNOWN_OFFSET:  # It was to be created, and has no record.
            del self.by_id[group_id]
            group.close()
        return why

    def end_deletion(self, group_id: str) -> None:
        """The states have ended, or some of them haven't: the group may be deleted, or take members again."""
        group = self.by_id.find_share(group_id)
        if group is not None:
            group.is_deleting = False

    def forget_topics(self, deleted: Iterable[TopicId], effects: Effects) -> None:
        """Topics are gone: the share coordinator forgets their states by itself."""
        gone = frozenset(deleted)
        for group in list(self.by_id.values()):
            share = self.by_id.find_share(group.group_id)
            if share is None:
                continue
            states = share.states
            if (
                gone.isdisjoint(states.initializing)
                and gone.isdisjoint(states.initialized)
                and gone.isdisjoint(states.deleting)
            ):
                continue
            kept = KnownStates(
                initializing={topic_id: row for topic_id, row in states.initializing.items() if topic_id not in gone},
                initialized={topic_id: row for topic_id, row in states.initialized.items() if topic_id not in gone},
                deleting={topic_id: name for topic_id, name in states.deleting.items() if topic_id not in gone},
                first_counts=states.first_counts,
            )
            _keep_states(share, kept, effects)


def _keep_states(group: ShareGroup, states: KnownStates, effects: Effects) -> None:
    """Ask for a record of states.

    A topic that has none any more is not known any more: its `first_counts` are in no row.
    """
    keep(group, ShareRecordType.STATES, "", states.record(), effects)
