"""OffsetFetch: v1-v10.

Behaviour: tells what groups have committed, for partitions that are asked for, or for all. What was never committed is -1 without an
error, also in groups and topics that there aren't. Only what can't be lost any more is told: an answer waits for commits that are under
way.

Version notes: v2 asks for all with null topics. v7 has `require_stable`, which changes nothing while there are no transactions. v8 asks
for many groups, v9 names a member and its epoch, which classic groups don't look at and others check. v10 has topic ids.

Errors: UNKNOWN_TOPIC_ID in single partitions; UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS and COORDINATOR_NOT_AVAILABLE for a group, in v1 in its partitions.

KIPs: 320, 447, 709, 848.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.network.connection import RequestContext
from lowtide.broker.network.dispatcher import HandlerSpec
from lowtide.broker.pending import Pending
from lowtide.broker.slices import ask_in_slices
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommitValue
from lowtide.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, ZERO_TOPIC_ID

_GROUP_ERROR_SINCE = 2
_GROUPS_SINCE = 8
_MEMBERS_SINCE = 9
_TOPIC_IDS_SINCE = 10


class OffsetFetchHandler:
    """OffsetFetch over the groups of a broker."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def handle(self, request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse | Pending[OffsetFetchResponse]:
        """Answer about every group, when all of it may be told."""
        version = context.api_version
        wanted = request.groups if version >= _GROUPS_SINCE else [_as_group(request)]
        answers: list[OffsetFetchResponseGroup | None] = [None] * len(wanted)
        pending: Pending[OffsetFetchResponse] = Pending()
        left = len(wanted)

        def answered(index: int, response: OffsetFetchResponseGroup | None) -> None:
            nonlocal left
            answers[index] = response
            left -= 1
            if not left and not pending.done:
                pending.complete(_response([answer for answer in answers if answer is not None], version))

        if not wanted:
            return OffsetFetchResponse()

        def ask() -> Generator[None, None, bool]:
            for index, group in enumerate(wanted):
                shard = self._groups.find(group.group_id)
                if isinstance(shard, ErrorCode):
                    answered(index, _failed(group, shard))
                else:
                    answer = partial(self._answer, shard, group, version, request.require_stable)
                    about = self._groups.when_readable(shard, group.group_id, answer)
                    about.listen(partial(answered, index))
                yield
            return True

        ask_in_slices(self._groups.broker.clock, self._groups.broker.log, pending, ask())
        return pending

    def _answer(
        self,
        shard: Shard[Groups],
        group: OffsetFetchRequestGroup,
        version: int,
        require_stable: bool,  # noqa: FBT001  a field of the request
        error: ErrorCode,
    ) -> OffsetFetchResponseGroup:
        if error == ErrorCode.NONE and version >= _MEMBERS_SINCE:
            error = shard.state.check_fetch(group.group_id, group.member_id, group.member_epoch)
        if error != ErrorCode.NONE:
            return _failed(group, error)
        committed = shard.state.committed

        def row(topic: str, number: int, value: OffsetCommitValue | None) -> OffsetFetchResponsePartitions:
            if require_stable and committed.pending.has(group.group_id, topic, number):
                return _row(number, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            return _row(number, value)

        image = self._groups.broker.metadata.image
        topics = []
        if group.topics is None:
            for name, partitions in committed.topics_of(group.group_id):
                known = image.topics.get(name)
                rows = [row(name, number, value) for number, value in partitions]
                topic_id = known.topic_id if known is not None else ZERO_TOPIC_ID
                if version < _TOPIC_IDS_SINCE or known is not None:
                    topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=rows))
            return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)
        unknown = []
        for topic in group.topics:
            name = topic.name
            if version >= _TOPIC_IDS_SINCE:
                found = image.topic_by_id(topic.topic_id)
                if found is None:
                    rows = [_row(number, None, ErrorCode.UNKNOWN_TOPIC_ID) for number in topic.partition_indexes]
                    unknown.append(OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=rows))
                    continue
                name = found.name
            found_ones = ((number, committed.find(group.group_id, name, number, topic.topic_id)) for number in topic.partition_indexes)
            rows = [row(name, number, value) for number, value in found_ones]
            topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic.topic_id, partitions=rows))
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics + unknown)


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """The handler over the groups of a broker."""
    return HandlerSpec(key=ApiKey.OFFSET_FETCH, handle=OffsetFetchHandler(groups).handle)


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """What the versions ask for that know one group."""
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )


def _row(number: int, value: OffsetCommitValue | None, error: ErrorCode = ErrorCode.NONE) -> OffsetFetchResponsePartitions:
    if value is None:
        return OffsetFetchResponsePartitions(
            partition_index=number,
            committed_offset=UNKNOWN_OFFSET,
            committed_leader_epoch=NO_LEADER_EPOCH,
            metadata="",
            error_code=error,
        )
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
        error_code=ErrorCode.NONE,
    )


def _failed(group: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    """A group that nothing can be told of; its partitions are named for v1, which has no other place for the error."""
    topics = [
        OffsetFetchResponseTopics(name=topic.name, partitions=[_row(number, None, error) for number in topic.partition_indexes])
        for topic in group.topics or ()
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error)


def _response(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    if version >= _GROUPS_SINCE:
        for group in groups:
            if group.error_code != ErrorCode.NONE:
                group.topics = []
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    if group.error_code != ErrorCode.NONE and version >= _GROUP_ERROR_SINCE:
        group.topics = []
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=row.partition_index,
                    committed_offset=row.committed_offset,
                    committed_leader_epoch=row.committed_leader_epoch,
                    metadata=row.metadata,
                    error_code=row.error_code,
                )
                for row in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)
