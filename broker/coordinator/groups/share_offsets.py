"""Initializes, describes, sets and deletes the start offsets of share groups that are coordinated here.

Guards: offsets are set or deleted only for a group without members, which takes none meanwhile. Its states are
initialized again in a later epoch, so that leaders of the earlier one write nothing more.

Source: Kafka's `GroupCoordinatorService.describeShareGroupOffsets`, `alterShareGroupOffsets`,
`deleteShareGroupOffsets`; KIP-932, KIP-1226.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.modern.share_group_states import ShareGroupStates, Starts
from lowtide.broker.coordinator.runtime.coordinator import ShardedCoordinator
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.coordinator.share_state.share_persister import Errors, SharePersister
from lowtide.broker.pending import Pending
from lowtide.broker.promises import answer_of
from lowtide.metadata.image import TopicImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffset,
    DescribedShareOffsetsGroup,
    DescribedShareOffsetsTopic,
    DescribeShareOffsetsGroup,
)
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartitionResult
from lowtide.protocol.share_state_records import UNKNOWN_COUNT, UNKNOWN_START, SharePlace
from lowtide.protocol.types import ZERO_TOPIC_ID, Offset, TopicId
from lowtide.replication.refusal import cut_message

UNKNOWN_LAG = -1

_WHY: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: "Group {} is not a share group.",
    ErrorCode.NON_EMPTY_GROUP: "Share group {} has members. All of them have to leave first.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "Share group {}, or where it continues, is being changed.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Group {} is not created: the broker has too many groups, or new groups.",
}


def why_not(error: ErrorCode, group_id: str) -> str | None:
    """Returns the message for an error about a whole group; None if the code says it all."""
    return cut_message(_WHY[error].format(group_id)) if error in _WHY else None


class ShareOffsets:
    """The start offsets of one broker's share groups."""

    def __init__(self, groups: ShardedCoordinator[Groups], persister: SharePersister) -> None:
        self._groups = groups
        self._persister = persister

    # ------------------------------------------------------------------ initialize
    def initialize(self, group_id: str, state_epoch: int, wanted: Starts) -> None:
        """Requests states for a group. A failed request is repeated with a later heartbeat."""
        work = self._initialize(group_id, state_epoch, wanted)
        self._groups.broker.tasks.spawn(work, name=f"begin the states of share group {group_id}")

    async def _initialize(self, group_id: str, state_epoch: int, wanted: Starts) -> None:
        errors = await self._persister.initialize(group_id, state_epoch, _places(group_id, wanted))
        begun: dict[TopicId, list[int]] = {}
        for place, error in errors.items():
            if error in (ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH):  # Fenced: there is a state of a later epoch.
                begun.setdefault(place.topic_id, []).append(place.partition)
            else:
                self._groups.broker.log.warning(
                    "the state of a share partition could not be initialized", partition=str(place), error=error.name
                )
        shard = self._groups.find(group_id)
        if begun and not isinstance(shard, ErrorCode):
            self._groups.carry_out(shard, partial(shard.state.shares.states.on_initialized, group_id, begun))

    # ------------------------------------------------------------------ describe
    async def starts(self, places: Iterable[SharePlace]) -> dict[SharePlace, Offset]:
        """Returns the start offsets of share partitions; unknown ones are missing or negative."""
        by_group: dict[str, list[SharePlace]] = {}
        for place in places:
            by_group.setdefault(place.group_id, []).append(place)
        found: dict[SharePlace, Offset] = {}
        for group_id, some in by_group.items():
            rows = await self._persister.summarize(group_id, some)
            found |= {place: row.start_offset for place, row in rows.items() if row.error_code == ErrorCode.NONE}
        return found

    async def describe(self, wanted: DescribeShareOffsetsGroup) -> DescribedShareOffsetsGroup:
        """Returns a group's start offsets in the named partitions, or in all that have a state.

        A start offset of -1 isn't known yet. A group that doesn't exist has no offsets, which is no error.

        Errors: GROUP_ID_NOT_FOUND for a group of another type, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; of
        partitions those of ReadShareGroupStateSummary.
        """
        group_id = wanted.group_id
        shard = self._groups.find(group_id)
        if isinstance(shard, ErrorCode):
            return DescribedShareOffsetsGroup(group_id=group_id, error_code=shard)
        group = shard.state.by_id.find_share(group_id)
        if group is None and group_id in shard.state.by_id:
            error = ErrorCode.GROUP_ID_NOT_FOUND
            return DescribedShareOffsetsGroup(
                group_id=group_id, error_code=error, error_message=why_not(error, group_id)
            )
        image = self._groups.broker.metadata.image
        if wanted.topics is None:
            begun = {} if group is None else group.states.initialized
            rows = {name: (topic_id, sorted(numbers)) for topic_id, (name, numbers) in begun.items()}
        else:
            rows = {}
            for row in wanted.topics:
                topic = image.topics.get(row.topic_name)
                rows[row.topic_name] = (
                    ZERO_TOPIC_ID if topic is None else topic.topic_id,
                    list(dict.fromkeys(row.partitions)),
                )
        known = [] if group is None else [row for row in rows.values() if row[0] != ZERO_TOPIC_ID]
        places = [SharePlace(group_id, topic_id, number) for topic_id, numbers in known for number in numbers]
        found = await self._persister.summarize(group_id, places) if places else {}
        topics = [
            DescribedShareOffsetsTopic(
                topic_name=name,
                topic_id=topic_id,
                partitions=[
                    self._described(name, found.get(SharePlace(group_id, topic_id, number)), number)
                    for number in numbers
                ],
            )
            for name, (topic_id, numbers) in rows.items()
        ]
        return DescribedShareOffsetsGroup(group_id=group_id, topics=topics)

    def _described(self, name: str, found: SummaryStatePartitionResult | None, number: int) -> DescribedShareOffset:
        if found is None:
            return DescribedShareOffset(partition_index=number)
        if found.error_code != ErrorCode.NONE:
            return DescribedShareOffset(
                partition_index=number, error_code=found.error_code, error_message=found.error_message
            )
        return DescribedShareOffset(
            partition_index=number,
            start_offset=found.start_offset,
            leader_epoch=found.leader_epoch,
            lag=self._lag(name, found),
        )

    def _lag(self, name: str, found: SummaryStatePartitionResult) -> int:
        """Returns the number of records that aren't finally delivered; -1 if this broker doesn't lead the partition."""
        partition = self._groups.broker.replicas.find(name, found.partition)
        is_unknown = found.start_offset == UNKNOWN_START or found.delivery_complete_count == UNKNOWN_COUNT
        if is_unknown or isinstance(partition, ErrorCode) or not partition.is_leader:
            return UNKNOWN_LAG
        return max(partition.log.high_watermark - found.start_offset - found.delivery_complete_count, 0)

    # ------------------------------------------------------------------ alter, delete
    async def alter(
        self, group_id: str, wanted: Mapping[TopicId, tuple[str, Mapping[int, Offset]]]
    ) -> ErrorCode | Errors:
        """Sets where an empty group continues, or a new one begins.

        Returns the outcome of each partition, or one error.

        Errors: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP, GROUP_MAX_SIZE_REACHED, NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS; of partitions those of InitializeShareGroupState.
        """
        shard = self._groups.find(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        epoch = await self._begin(
            shard,
            lambda states, reply, effects: states.initialize_again(group_id, _numbers(wanted), reply, effects),
        )
        if isinstance(epoch, ErrorCode):
            return epoch
        starts = {topic_id: starts for topic_id, (_, starts) in wanted.items()}
        errors = await self._persister.initialize(group_id, epoch, _places(group_id, starts))
        done: dict[TopicId, list[int]] = {}
        for place, error in errors.items():
            if error == ErrorCode.NONE:
                done.setdefault(place.topic_id, []).append(place.partition)
        kept = await self._finish(
            shard, group_id, lambda effects: shard.state.shares.states.on_initialized(group_id, done, effects)
        )
        return errors if kept == ErrorCode.NONE else kept

    async def delete(self, group_id: str, wanted: Mapping[TopicId, TopicImage]) -> ErrorCode | dict[TopicId, ErrorCode]:
        """Removes topics from an empty group. Returns the outcome of each, or one error: those of `begin_deletion`."""
        shard = self._groups.find(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.state.by_id.find_share(group_id)
        known = [topic_id for topic_id in wanted if group is not None and group.states.includes(topic_id)]
        epoch = await self._begin(
            shard, lambda states, reply, effects: states.begin_deletion(group_id, reply, effects, topics=known)
        )
        if isinstance(epoch, ErrorCode):
            return epoch
        places = [
            SharePlace(group_id, topic_id, number)
            for topic_id in known
            for number in range(len(wanted[topic_id].partitions))
        ]
        errors = await self._persister.delete(group_id, places)
        failed = {
            place.topic_id: ErrorCode.COORDINATOR_NOT_AVAILABLE
            for place, error in errors.items()
            if error != ErrorCode.NONE
        }
        done = [topic_id for topic_id in known if topic_id not in failed]
        kept = await self._finish(
            shard, group_id, lambda effects: shard.state.shares.states.note_deleted(group_id, done, effects)
        )
        if kept != ErrorCode.NONE:
            return kept
        return {
            topic_id: failed.get(topic_id, ErrorCode.NONE)
            if topic_id in known
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic_id in wanted
        }

    async def delete_group(self, shard: Shard[Groups], group_id: str, places: Sequence[SharePlace]) -> ErrorCode:
        """Deletes the states, and then the group.

        Errors: those of `Groups.delete_group`, COORDINATOR_NOT_AVAILABLE.
        """
        epoch = await self._begin(shard, lambda states, reply, effects: states.begin_deletion(group_id, reply, effects))
        if isinstance(epoch, ErrorCode):
            return epoch
        errors = await self._persister.delete(group_id, places)
        if any(each != ErrorCode.NONE for each in errors.values()):
            shard.state.shares.states.unlock(group_id)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return await self._finish(shard, group_id, lambda effects: shard.state.delete_group(group_id, effects))

    async def _begin(
        self, shard: Shard[Groups], decide: Callable[[ShareGroupStates, Pending[int], Effects], None]
    ) -> int | ErrorCode:
        """Records what is about to happen to a group. Returns its epoch, or an error."""
        states = shard.state.shares.states
        pending: Pending[int] = self._groups.decide(shard, lambda reply, effects: decide(states, reply, effects))
        outcome = await answer_of(pending)
        return ErrorCode.UNKNOWN_SERVER_ERROR if outcome is None else outcome

    async def _finish(
        self, shard: Shard[Groups], group_id: str, decide: Callable[[Effects], ErrorCode | None]
    ) -> ErrorCode:
        """Unlocks the group for new members and records the result. Returns an error, or NONE once it is committed."""
        shard.state.shares.states.unlock(group_id)
        if shard.unloaded:
            return ErrorCode.NOT_COORDINATOR

        def carry_out(reply: Pending[ErrorCode], effects: Effects) -> None:
            effects.answer_when_committed(reply, decide(effects) or ErrorCode.NONE, lambda error: error)

        return await answer_of(self._groups.decide(shard, carry_out)) or ErrorCode.NONE


def _places(group_id: str, starts: Starts) -> dict[SharePlace, Offset]:
    return {
        SharePlace(group_id, topic_id, number): start
        for topic_id, offsets in starts.items()
        for number, start in offsets.items()
    }


def _numbers(wanted: Mapping[TopicId, tuple[str, Mapping[int, Offset]]]) -> dict[TopicId, tuple[str, Iterable[int]]]:
    return {topic_id: (name, list(starts)) for topic_id, (name, starts) in wanted.items()}
