"""Errors of a Fetch: of the whole request, of a partition, and where its leader is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lowtide.broker.partitions.fetch.fetch_targets import NO_RECORDS
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch, PartitionData
from lowtide.protocol.types import UNKNOWN_OFFSET

if TYPE_CHECKING:
    from collections import Counter

    from lowtide.broker.partitions.fetch.fetch_targets import FetchRules, FetchTarget
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.protocol.messages.fetch import FetchRequest
    from lowtide.replication.partition import Partition

SESSIONS_SINCE: Final = 7
"""The first version with sessions, and with an error of the whole request."""

_NODE_ENDPOINTS_SINCE: Final = 16


def refuse(request: FetchRequest, version: int, error: ErrorCode, errors: Counter[tuple[str, int]]) -> FetchResponse:
    """Returns an error of the whole request; before v7, which has none, of each partition. Counts it in `errors`."""
    if version < SESSIONS_SINCE:
        return failed_throughout(request, error, errors)
    errors["Fetch", error] += 1
    return FetchResponse(throttle_time_ms=0, error_code=error, session_id=0, responses=[])


def failed_throughout(request: FetchRequest, error: ErrorCode, errors: Counter[tuple[str, int]]) -> FetchResponse:
    """Returns the same error for every partition of the request. Counts them in `errors`."""
    errors["Fetch", error] += sum(len(topic.partitions) for topic in request.topics)
    response = FetchResponse(throttle_time_ms=0, session_id=0, responses=[])
    row = partial(PartitionData, error_code=error, high_watermark=-1, records=b"")
    for topic in request.topics:
        rows = [row(partition_index=asked.partition) for asked in topic.partitions]
        response.responses.append(FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=rows))
    return response


def failed_row(partition: int, error: int, *, aborted: list[Any] | None) -> PartitionData:
    """Returns the row of a partition that could not be read, without offsets."""
    return PartitionData(
        partition_index=partition,
        error_code=error,
        high_watermark=UNKNOWN_OFFSET,
        last_stable_offset=UNKNOWN_OFFSET,
        log_start_offset=UNKNOWN_OFFSET,
        aborted_transactions=aborted,
        records=NO_RECORDS,
    )


def tell_leader(
    replicas: ReplicaManager,
    answer: PartitionData,
    target: FetchTarget,
    rules: FetchRules,
    partition: Partition | None = None,
) -> None:
    """Adds the leader to a response of the wrong broker, or for an old leader epoch (KIP-951)."""
    elsewhere = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    if rules.api_version < _NODE_ENDPOINTS_SINCE or answer.error_code not in elsewhere:
        return
    if partition is not None:
        answer.current_leader = LeaderIdAndEpoch(leader_id=partition.leader_id, leader_epoch=partition.leader_epoch)
        return
    leader = replicas.leader_elsewhere(target.topic, target.partition)
    if leader is not None:
        answer.current_leader = LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
