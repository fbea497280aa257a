"""Committed offsets of consumer groups: reads, sets and deletes them, at each group's coordinator.

Classic groups and those of KIP-848 are treated alike. Offsets can be set only while a group has no members: the next
commit of a member would overwrite them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from lowtide.admin.arguments import named
from lowtide.admin.attempts import Done, Outcome, RetryLater
from lowtide.admin.call import (
    AdminCall,
    AdminClientBase,
    by_topic,
    failure,
    is_worth_a_retry,
    numbers_by_topic,
    partition_rows,
)
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from lowtide.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from lowtide.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from lowtide.protocol.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, BrokerId, LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle

NAMES_UNTIL: Final = 9
"""The last version of OffsetFetch and OffsetCommit with topic names; later ones have topic ids."""

_MANY_GROUPS_SINCE: Final = 8
_ALL_TOPICS_SINCE: Final = 2


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A committed offset: the group reads the record at `offset` next."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """The leader epoch of the last consumed record, or -1 if it is unknown."""
    metadata: str = ""


GroupOffsets: TypeAlias = dict[TopicPartition, CommittedOffset | BrokerAnsweredError]
"""The committed offsets of a group; partitions without one are missing."""


async def list_group_offsets(
    client: AdminClientBase,
    group_ids: Iterable[str] | Mapping[str, Collection[TopicPartition] | None],
    *,
    require_stable: bool = False,
    timeout: float | None = None,
) -> dict[str, GroupOffsets | AdminError]:
    """Returns the committed offsets of groups: of all partitions, or of those that are given for a group.

    Partitions without a commit are missing. `require_stable` waits for transactions that are about to commit offsets
    (KIP-447).
    """
    wanted = group_ids if isinstance(group_ids, Mapping) else dict.fromkeys(named(group_ids))
    return await committed_offsets_of(client.call(timeout), wanted, require_stable=require_stable)


async def committed_offsets_of(
    call: AdminCall, wanted: Mapping[str, Collection[TopicPartition] | None], *, require_stable: bool = False
) -> dict[str, GroupOffsets | AdminError]:
    """Lists committed offsets as part of a call."""

    async def send(broker_id: BrokerId, groups: list[str]) -> Mapping[str, Outcome[GroupOffsets]]:
        async with call.cluster.broker(broker_id, call.deadline) as handle:
            needed = 7 if require_stable else 0
            version = handle.choose(OffsetFetchRequest, at_least=needed, at_most=NAMES_UNTIL)
            if version >= _MANY_GROUPS_SINCE:
                rows = [OffsetFetchRequestGroup(group_id=group, topics=_topics(wanted[group])) for group in groups]
                response = await handle.ask_in(OffsetFetchRequest(groups=rows, require_stable=require_stable), version)
                return {row.group_id: _fetched(row.group_id, row) for row in response.groups}
            return {group: await _fetch_one(handle, version, group, wanted[group], require_stable) for group in groups}

    return await call.each(wanted, call.to_coordinators, send, lambda group: f"the committed offsets of group {group}")


def _topics(partitions: Collection[TopicPartition] | None) -> list[OffsetFetchRequestTopics] | None:
    if partitions is None:
        return None
    return [
        OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
        for name, indexes in numbers_by_topic(partitions).items()
    ]


async def _fetch_one(
    handle: BrokerHandle,
    version: int,
    group: str,
    partitions: Collection[TopicPartition] | None,
    require_stable: bool,  # noqa: FBT001 one flag, named by its caller
) -> Outcome[GroupOffsets]:
    """Asks a broker before Kafka 3.0, which takes one group at a time."""
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in numbers_by_topic(partitions).items()
        ]
    elif version < _ALL_TOPICS_SINCE:
        return BrokerAnsweredError(
            ErrorCode.UNSUPPORTED_VERSION, f"group {group}: the broker is too old to return all offsets of a group"
        )
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
    return _fetched(group, await handle.ask_in(request, version))


def _fetched(group: str, answer: Any) -> Outcome[GroupOffsets]:
    """Reads one group's part of an answer."""
    if answer.error_code:
        return failure(f"the committed offsets of group {group}", answer.error_code)
    found: GroupOffsets = {}
    for key, row in partition_rows(answer.topics):
        if is_worth_a_retry(row.error_code):
            return RetryLater(f"{key}: {code_name(row.error_code)}")
        if row.error_code:
            found[key] = BrokerAnsweredError(row.error_code, f"{key}: the committed offset of group {group}")
        elif row.committed_offset != UNKNOWN_OFFSET:
            found[key] = CommittedOffset(
                offset=row.committed_offset, leader_epoch=row.committed_leader_epoch, metadata=row.metadata or ""
            )
    return Done(found)


async def alter_group_offsets(
    client: AdminClientBase,
    group: str,
    committed: Mapping[TopicPartition, CommittedOffset | Offset],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, AdminError | None]:
    """Commits offsets for a group without members; None means done. UNKNOWN_MEMBER_ID while the group has members."""
    rows = {}
    for key, value in committed.items():
        offset = CommittedOffset(offset=value) if isinstance(value, int) else value
        rows[key] = OffsetCommitRequestPartition(
            partition_index=key.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )
    topics = [OffsetCommitRequestTopic(name=name, partitions=some) for name, some in by_topic(rows).items()]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
    return await _change(client, group, request, list(committed), timeout, at_most=NAMES_UNTIL)


async def delete_group_offsets(
    client: AdminClientBase, group: str, partitions: Collection[TopicPartition], *, timeout: float | None = None
) -> dict[TopicPartition, AdminError | None]:
    """Deletes committed offsets of a group; GROUP_SUBSCRIBED_TO_TOPIC while a member reads the topic."""
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for name, indexes in numbers_by_topic(partitions).items()
    ]
    request = OffsetDeleteRequest(group_id=group, topics=topics)
    return await _change(client, group, request, list(partitions), timeout)


async def _change(
    client: AdminClientBase,
    group: str,
    request: Any,
    partitions: list[TopicPartition],
    timeout: float | None,
    at_most: int | None = None,
) -> dict[TopicPartition, AdminError | None]:
    """Sends a change of a group's offsets to its coordinator. One retriable error in the answer repeats all of it."""
    call, what = client.call(timeout), f"the offsets of group {group}"

    async def send(broker_id: BrokerId, _: list[str]) -> Mapping[str, Outcome[dict[TopicPartition, int]]]:
        response = await call.ask(broker_id, request, at_most=at_most)
        code = getattr(response, "error_code", 0)
        if code:
            return {group: failure(what, code)}
        codes = {key: row.error_code for key, row in partition_rows(response.topics)}
        again = [code for code in codes.values() if is_worth_a_retry(code)]
        return {group: RetryLater(code_name(again[0])) if again else Done(codes)}

    result = (await call.each([group], call.to_coordinators, send, lambda _: what))[group]
    if isinstance(result, AdminError):
        return dict.fromkeys(partitions, result)
    codes = {key: result.get(key, ErrorCode.UNKNOWN_SERVER_ERROR) for key in partitions}
    return {
        key: BrokerAnsweredError(code, f"{key}: the offset of group {group}") if code else None
        for key, code in codes.items()
    }
