"""Responses to fetches that are refused as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

SESSIONS_SINCE: Final = 7
"""The first version with sessions, and with an error for the whole request."""


def _failed(rows: Iterable[FetchPartition], error: ErrorCode) -> list[PartitionData]:
    return [
        PartitionData(partition_index=row.partition, error_code=error, high_watermark=-1, records=b"") for row in rows
    ]


def refuse(request: FetchRequest, version: int, error: ErrorCode, errors: Counter[tuple[str, int]]) -> FetchResponse:
    """Returns the response to a refused request; in old versions each partition has the error. Counts in `errors`."""
    if version >= SESSIONS_SINCE:
        errors["Fetch", error] += 1
        return FetchResponse(throttle_time_ms=0, error_code=error, session_id=0, responses=[])
    return failed_throughout(request, error, errors)


def failed_throughout(request: FetchRequest, error: ErrorCode, errors: Counter[tuple[str, int]]) -> FetchResponse:
    """Returns a response with the same error for every partition."""
    errors["Fetch", error] += sum(len(topic.partitions) for topic in request.topics)
    topics = [
        FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=_failed(topic.partitions, error))
        for topic in request.topics
    ]
    return FetchResponse(throttle_time_ms=0, session_id=0, responses=topics)
