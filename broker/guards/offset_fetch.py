"""The guard of OffsetFetch. Source: Kafka's `KafkaApis.handleOffsetFetchRequest`."""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, group, topic
from lowtide.broker.guards.guard import Asker, Verdict, with_rows
from lowtide.protocol.errors import ErrorCode
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
from lowtide.protocol.types import UNKNOWN_OFFSET

TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_DENIED = ErrorCode.GROUP_AUTHORIZATION_FAILED

_GROUP_ERROR_SINCE = 2
_GROUPS_SINCE = 8
_TOPIC_IDS_SINCE = 10


def offset_fetch(request: OffsetFetchRequest, asker: Asker) -> Verdict:
    """Requires DESCRIBE on each group and topic. If all topics are requested, the others are left out."""
    return _one_group(request, asker) if asker.context.api_version < _GROUPS_SINCE else _many_groups(request, asker)


def _one_group(request: OffsetFetchRequest, asker: Asker) -> Verdict:
    if not asker.may(Operation.DESCRIBE, group(request.group_id)):
        named = request.topics if asker.context.api_version < _GROUP_ERROR_SINCE else ()
        topics = [_failed_topic(each.name, each.partition_indexes, GROUP_DENIED) for each in named or ()]
        return Verdict(answer=OffsetFetchResponse(topics=topics, error_code=GROUP_DENIED))
    if request.topics is None:
        return Verdict(
            request, lambda answer: replace(answer, topics=[row for row in answer.topics if _may_see(row.name, asker)])
        )
    allowed, denied = asker.split(Operation.DESCRIBE, request.topics, lambda each: each.name)
    rows = [_failed_topic(each.name, each.partition_indexes, TOPIC_DENIED) for each in denied]
    return with_rows(replace(request, topics=allowed), "topics", rows)


def _may_see(name: str, asker: Asker) -> bool:
    return asker.may(Operation.DESCRIBE, topic(name), Audit.ALLOWED)


def _failed_topic(name: str, partitions: list[int], error: ErrorCode) -> OffsetFetchResponseTopic:
    rows = [
        OffsetFetchResponsePartition(
            partition_index=number, committed_offset=UNKNOWN_OFFSET, metadata="", error_code=error
        )
        for number in partitions
    ]
    return OffsetFetchResponseTopic(name=name, partitions=rows)


def _many_groups(request: OffsetFetchRequest, asker: Asker) -> Verdict:
    allowed: list[OffsetFetchRequestGroup] = []
    refused: list[OffsetFetchResponseGroup] = []
    asked_for_all: dict[str, None] = {}
    failed: dict[str, list[OffsetFetchResponseTopics]] = {}
    by_id = asker.context.api_version >= _TOPIC_IDS_SINCE
    for each in request.groups:
        if not asker.may(Operation.DESCRIBE, group(each.group_id)):
            refused.append(OffsetFetchResponseGroup(group_id=each.group_id, error_code=GROUP_DENIED))
            continue
        if each.topics is None:
            asked_for_all[each.group_id] = None
            allowed.append(each)
            continue
        kept, denied = asker.split(
            Operation.DESCRIBE, each.topics, lambda row: asker.name_of(row.name, row.topic_id, by_id=by_id)
        )
        failed[each.group_id] = [_failed_topics(row) for row in denied]
        allowed.append(replace(each, topics=kept))

    def seen(answer: OffsetFetchResponseGroup) -> OffsetFetchResponseGroup:
        if answer.error_code != ErrorCode.NONE:
            return answer
        if answer.group_id in asked_for_all:
            return replace(answer, topics=[row for row in answer.topics if _may_see(row.name, asker)])
        return replace(answer, topics=[*answer.topics, *failed[answer.group_id]])

    def merge(answer: OffsetFetchResponse) -> OffsetFetchResponse:
        return replace(answer, groups=[*map(seen, answer.groups), *refused])

    return Verdict(replace(request, groups=allowed), merge)


def _failed_topics(asked: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    rows = [
        OffsetFetchResponsePartitions(
            partition_index=number, committed_offset=UNKNOWN_OFFSET, metadata="", error_code=TOPIC_DENIED
        )
        for number in asked.partition_indexes
    ]
    return OffsetFetchResponseTopics(name=asked.name, topic_id=asked.topic_id, partitions=rows)
