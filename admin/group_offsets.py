"""Committed offsets of groups: read, set and removed, at each group's coordinator.

A group is asked for by name, classic or of KIP-848 alike. Offsets are set only while the group has no members, as with
Kafka's tools: what a running group commits next would undo it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from lowtide.admin.attempts import Attempts, Done, Located, Outcome, Retry
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.protocol.client.retries import is_retriable
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
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.patience import Deadline

NAMES_UNTIL: Final = 9
"""From version 10 on, OffsetFetch and OffsetCommit take topic ids instead of names."""

_MANY_GROUPS_SINCE: Final = 8
_ALL_TOPICS_SINCE: Final = 2


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a group has committed for a partition: the offset of the record that it will read next."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """The epoch of the last record that was consumed, where it is known; else -1."""
    metadata: str = ""


GroupOffsets: TypeAlias = dict[TopicPartition, CommittedOffset | BrokerAnsweredError]
"""What a group has committed; a partition without a commit isn't in it."""


def coordinator_locator(cluster: Cluster, deadline: Deadline) -> Callable[[Collection[str], int], Any]:
    """How the coordinators of groups are found, for `Attempts`."""

    async def locate(groups: Collection[str], _: int) -> Located[str]:
        located = Located[str]()
        for group, found in (await cluster.coordinators(groups, deadline)).items():
            if isinstance(found, BrokerAnsweredError):
                located.others[group] = Retry(str(found)) if is_retriable(found.code) else found
            else:
                located.put(found, group)
        answered = {group for placed in located.placed.values() for group in placed}
        for group in groups:
            if group not in located.others and group not in answered:
                located.others[group] = Retry("no coordinator was returned")
        return located

    return locate


def final_or_retry(code: int, what: str, broker_message: str | None = None) -> Retry | AdminError:
    """What an error that concerns a whole group means."""
    return Retry(code_name(code)) if is_retriable(code) else BrokerAnsweredError(code, what, broker_message)


async def list_group_offsets(
    cluster: Cluster,
    asked: Mapping[str, Collection[TopicPartition] | None],
    deadline: Deadline,
    *,
    require_stable: bool = False,
) -> dict[str, GroupOffsets | AdminError]:
    """Committed offsets of groups; None asks for all partitions. See `AdminClient.list_group_offsets`."""

    async def send(broker_id: BrokerId, groups: list[str], _: int) -> Mapping[str, Outcome[GroupOffsets]]:
        async with cluster.broker(broker_id, deadline) as handle:
            needed = 7 if require_stable else 0
            version = handle.choose(OffsetFetchRequest, at_least=needed, at_most=NAMES_UNTIL)
            if version >= _MANY_GROUPS_SINCE:
                rows = [OffsetFetchRequestGroup(group_id=group, topics=_topics(asked[group])) for group in groups]
                response = await handle.ask_in(OffsetFetchRequest(groups=rows, require_stable=require_stable), version)
                return {row.group_id: _fetched(row.group_id, row) for row in response.groups}
            return {group: await _fetch_one(handle, version, group, asked[group], require_stable) for group in groups}

    attempts = Attempts[str, GroupOffsets](cluster, deadline, coordinator_locator(cluster, deadline), send)
    await attempts.run(list(asked))
    return attempts.results(lambda group: f"the committed offsets of group {group}")


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


def _topics(partitions: Collection[TopicPartition] | None) -> list[OffsetFetchRequestTopics] | None:
    if partitions is None:
        return None
    return [
        OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
        for name, indexes in _by_topic(partitions).items()
    ]


async def _fetch_one(
    handle: BrokerHandle,
    version: int,
    group: str,
    partitions: Collection[TopicPartition] | None,
    require_stable: bool,  # noqa: FBT001 one flag, named by its caller
) -> Outcome[GroupOffsets]:
    """From brokers before Kafka 3.0, which take one group at a time."""
    topics = None
    if partitions is not None:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=indexes)
            for name, indexes in _by_topic(partitions).items()
        ]
    elif version < _ALL_TOPICS_SINCE:
        return BrokerAnsweredError(
            ErrorCode.UNSUPPORTED_VERSION, f"group {group}: the broker is too old to tell all its offsets"
        )
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)
    return _fetched(group, await handle.ask_in(request, version))


def _fetched(group: str, row: Any) -> Outcome[GroupOffsets]:
    """What one group's part of an answer says."""
    if row.error_code:
        return final_or_retry(row.error_code, f"the committed offsets of group {group}")
    found: GroupOffsets = {}
    for topic in row.topics:
        for partition in topic.partitions:
            key = TopicPartition(topic.name, partition.partition_index)
            if (
                partition.error_code
                and is_retriable(partition.error_code)
                and partition.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ):
                return Retry(f"{key}: {code_name(partition.error_code)}")
            if partition.error_code:
                found[key] = BrokerAnsweredError(partition.error_code, f"{key}: the committed offset of group {group}")
            elif partition.committed_offset != UNKNOWN_OFFSET:
                found[key] = CommittedOffset(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata or "",
                )
    return Done(found)


async def alter_group_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, CommittedOffset], deadline: Deadline
) -> dict[TopicPartition, AdminError | None]:
    """Commit offsets for a group without members. See `AdminClient.alter_group_offsets`."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for partition, committed in offsets.items():
        row = OffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            committed_metadata=committed.metadata,
        )
        by_topic.setdefault(partition.topic, []).append(row)
    topics = [OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in by_topic.items()]
    request = OffsetCommitRequest(group_id=group, member_id="", topics=topics)
    return await _change(cluster, group, request, list(offsets), deadline, at_most=NAMES_UNTIL)


async def delete_group_offsets(
    cluster: Cluster, group: str, partitions: Collection[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, AdminError | None]:
    """Forget what a group has committed. See `AdminClient.delete_group_offsets`."""
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        )
        for name, indexes in _by_topic(partitions).items()
    ]
    return await _change(cluster, group, OffsetDeleteRequest(group_id=group, topics=topics), list(partitions), deadline)


async def _change(
    cluster: Cluster,
    group: str,
    request: Any,
    partitions: list[TopicPartition],
    deadline: Deadline,
    at_most: int | None = None,
) -> dict[TopicPartition, AdminError | None]:
    """Send a change of a group's offsets to its coordinator; all of it is repeated while any of it is answered as retriable."""

    async def send(broker_id: BrokerId, _: list[str], __: int) -> Mapping[str, Outcome[dict[TopicPartition, int]]]:
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(request, at_most=at_most)
            code = getattr(response, "error_code", 0)
            if code:
                return {group: final_or_retry(code, f"the offsets of group {group}")}
            rows = {
                TopicPartition(topic.name, row.partition_index): row.error_code
                for topic in response.topics
                for row in topic.partitions
            }
            again = [
                code for code in rows.values() if is_retriable(code) and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ]
            return {group: Retry(code_name(again[0])) if again else Done(rows)}

    attempts = Attempts[str, dict[TopicPartition, int]](cluster, deadline, coordinator_locator(cluster, deadline), send)
    await attempts.run([group])
    outcome = attempts.results(lambda name: f"the offsets of group {name}")[group]
    if isinstance(outcome, AdminError):
        return dict.fromkeys(partitions, outcome)
    results: dict[TopicPartition, AdminError | None] = {}
    for partition in partitions:
        code = outcome.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        results[partition] = BrokerAnsweredError(code, f"{partition}: the offset of group {group}") if code else None
    return results
