"""OffsetFetch: v1-v10.

Behaviour: returns the committed offsets of groups, for the requested partitions or for all. An offset that was never
committed is -1 without an error, also for unknown groups and topics. The response waits until everything in it is
committed.

Version notes: v2 requests all partitions with null topics. v7 has `require_stable`: an offset in an open transaction
makes a partition UNSTABLE_OFFSET_COMMIT. v8 has many groups. v9 has the member and its epoch, which modern groups
check. v10 has topic ids.

Errors: of single partitions UNKNOWN_TOPIC_ID, UNSTABLE_OFFSET_COMMIT; of a group (in v1 of its partitions)
UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.

KIPs: 320, 447, 709, 848.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.group_shard import Groups
from lowtide.broker.coordinator.runtime.shard import Shard
from lowtide.broker.guards import offset_fetch as guards
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.request_context import RequestContext
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
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, ZERO_TOPIC_ID, TopicId

_GROUP_ERROR_SINCE = 2
_GROUPS_SINCE = 8
_MEMBERS_SINCE = 9
_TOPIC_IDS_SINCE = 10

PARTITIONS_A_STEP = 100
"""Some two tenths of a millisecond's work."""


def cut(version: int) -> Cut:
    """Returns how a large request is cut."""
    levels = (("topics", "topics"), ("partition_indexes", "partitions"))
    return Cut(levels=levels if version < _GROUPS_SINCE else (("groups", "groups"), *levels))


class OffsetFetchHandler:
    """Answers OffsetFetch requests."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups

    def handle(self, request: OffsetFetchRequest, context: RequestContext) -> Answer[OffsetFetchResponse]:
        """Answers about all groups when the answer for each may be returned."""
        version = context.api_version
        wanted = request.groups if version >= _GROUPS_SINCE else [_as_group(request)]
        answers: list[OffsetFetchResponseGroup | None] = [None] * len(wanted)
        pending: Pending[OffsetFetchResponse] = Pending()
        left = len(wanted)
        broker, made = self._groups.broker, OffsetFetchResponse()

        def on_made(_: None) -> None:
            if not pending.done:
                pending.complete(made)

        def answered(index: int, response: OffsetFetchResponseGroup | None) -> None:
            nonlocal left
            answers[index] = response
            left -= 1
            if not left and not pending.done:
                broker.turns.run(
                    _put_together([each for each in answers if each is not None], version, made),
                    on_made,
                    partial(broker.turns.fail, pending),
                )

        if not wanted:
            return OffsetFetchResponse()

        def ask() -> Generator[None, None, bool]:
            for index, group in enumerate(wanted):
                shard = self._groups.find(group.group_id)
                if isinstance(shard, ErrorCode):
                    answered(index, _failed(group, shard))
                else:
                    found = yield from self._find(shard, group, version, require_stable=request.require_stable)
                    if shard.unloaded:
                        found = _failed(group, ErrorCode.NOT_COORDINATOR)
                    about = self._groups.when_readable(shard, group.group_id, partial(_unless, group, found))
                    about.listen(partial(answered, index))
                yield
            return True

        self._groups.broker.turns.ask(pending, ask())
        return pending

    def _find(
        self, shard: Shard[Groups], group: OffsetFetchRequestGroup, version: int, *, require_stable: bool
    ) -> Generator[None, None, OffsetFetchResponseGroup]:
        """Reads in steps what a group has committed; each partition's row is from one moment."""
        error = (
            shard.state.check_fetch(group.group_id, group.member_id, group.member_epoch)
            if version >= _MEMBERS_SINCE
            else ErrorCode.NONE
        )
        if error != ErrorCode.NONE:
            return _failed(group, error)
        committed = shard.state.committed
        topics, unknown = list[OffsetFetchResponseTopics](), list[OffsetFetchResponseTopics]()
        asks_for_all = group.topics is None
        for name, topic_id, numbers in self._wanted(shard, group, version):
            rows = []
            for count, number in enumerate(numbers, 1):
                if count % PARTITIONS_A_STEP == 0:
                    yield
                if name is None:
                    rows.append(_row(number, None, ErrorCode.UNKNOWN_TOPIC_ID))
                elif require_stable and committed.pending.has(group.group_id, name, number):
                    rows.append(_row(number, None, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                else:
                    rows.append(
                        _row(
                            number,
                            committed.find(group.group_id, name, number, ZERO_TOPIC_ID if asks_for_all else topic_id),
                        )
                    )
            (unknown if name is None else topics).append(
                OffsetFetchResponseTopics(name=name or "", topic_id=topic_id, partitions=rows)
            )
            yield
        return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics + unknown)

    def _wanted(
        self, shard: Shard[Groups], group: OffsetFetchRequestGroup, version: int
    ) -> Iterator[tuple[str | None, TopicId, Sequence[int]]]:
        """Yields the requested partitions, or all, with the name and id of their topic; None for an unknown id."""
        image = self._groups.broker.metadata.image
        for topic in group.topics or ():
            if version < _TOPIC_IDS_SINCE:
                yield topic.name, topic.topic_id, topic.partition_indexes
            else:
                found = image.topic_by_id(topic.topic_id)
                yield None if found is None else found.name, topic.topic_id, topic.partition_indexes
        if group.topics is None:
            for name, numbers in shard.state.committed.topics_of(group.group_id):
                known = image.topics.get(name)
                if version < _TOPIC_IDS_SINCE or known is not None:
                    yield name, known.topic_id if known is not None else ZERO_TOPIC_ID, numbers


def handler(groups: GroupCoordinator) -> HandlerSpec:
    """Returns the handler."""
    return HandlerSpec(
        key=ApiKey.OFFSET_FETCH, guard=guards.offset_fetch, handle=OffsetFetchHandler(groups).handle, cut=cut
    )


def _as_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """Returns the group of a request in a version with only one."""
    topics = request.topics
    return OffsetFetchRequestGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )


def _row(
    number: int, value: OffsetCommitValue | None, error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
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
    """Returns a group with an error. Its partitions are included for v1, where the error is only in them."""
    topics = [
        OffsetFetchResponseTopics(
            name=topic.name, partitions=[_row(number, None, error) for number in topic.partition_indexes]
        )
        for topic in group.topics or ()
    ]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error)


def _unless(
    group: OffsetFetchRequestGroup, found: OffsetFetchResponseGroup, error: ErrorCode
) -> OffsetFetchResponseGroup:
    return found if error == ErrorCode.NONE else _failed(group, error)


def _put_together(
    groups: list[OffsetFetchResponseGroup], version: int, response: OffsetFetchResponse
) -> Iterator[None]:
    """Fills in an answer, in steps."""
    for group in groups:
        if group.error_code != ErrorCode.NONE and version >= _GROUP_ERROR_SINCE:
            group.topics = []
    if version >= _GROUPS_SINCE:
        response.groups = groups
        return
    (group,) = groups
    response.error_code = group.error_code
    for topic in group.topics:
        rows = []
        for row in topic.partitions:
            rows.append(
                OffsetFetchResponsePartition(
                    partition_index=row.partition_index,
                    committed_offset=row.committed_offset,
                    committed_leader_epoch=row.committed_leader_epoch,
                    metadata=row.metadata,
                    error_code=row.error_code,
                )
            )
            if len(rows) % PARTITIONS_A_STEP == 0:
                yield
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=rows))
        yield
