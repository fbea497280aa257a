"""Applies the quota of changed partitions: topics created, grown and deleted (KIP-599).

A change is admitted while its client has any of its rate left. It may take more than is left, and put the client in
debt: its next changes are refused until that is paid. At most the rate of `controller.quota.window.num` samples is
saved up.

Request versions that have an error code for it get THROTTLING_QUOTA_EXCEEDED for each topic that isn't admitted. In
other versions the change is made and the client waits afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopicResult
from lowtide.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest
from lowtide.replication.new_topics import MAX_REQUEST_PARTITIONS

TELLS_SINCE: Final[Mapping[ApiKey, int]] = {
    ApiKey.CREATE_TOPICS: 6,
    ApiKey.CREATE_PARTITIONS: 3,
    ApiKey.DELETE_TOPICS: 5,
}
"""The first request version that has an error code for it."""

_BY_ID_SINCE: Final = 6
_CODE: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED
_MESSAGE: Final = "The quota of changed partitions (controller_mutation_rate) is used up"

Cost: TypeAlias = "tuple[Any, int]"
"""A row of a request, and how many partitions it changes."""


class MutationAdmission(msgspec.Struct, frozen=True):
    """The admitted part of a request, the answers to refused rows, and how long the client must wait."""

    request: Any
    refused: list[Any]
    wait_ms: int


def admit(
    key: ApiKey, request: Any, version: int, costs: list[Cost], take: Callable[[int, bool], int]
) -> MutationAdmission:
    """Admits changes one by one in their order.

    `take` charges partitions to the client's rate. If its second argument is true, it does so even if nothing is left.
    It returns how long the client must wait, or 0.
    """
    tells, wait_ms = version >= TELLS_SINCE[key], 0
    allowed: list[Any] = []
    refused: list[Any] = []
    for row, count in costs:
        row_wait_ms = take(count, not tells) if count else 0
        wait_ms = max(wait_ms, row_wait_ms)
        (refused if tells and row_wait_ms else allowed).append(row)
    if not refused:
        return MutationAdmission(request, [], wait_ms)
    return MutationAdmission(
        replace(request, **{_rows_field(key, version): allowed}), [_refusal(key, row) for row in refused], wait_ms
    )


def costs_of(key: ApiKey, request: Any, version: int, image: MetadataImage, default_partitions: int) -> list[Cost]:
    """Returns how many partitions each row changes.

    A row above the limit of any request counts 0, because it will be refused.
    """
    if key == ApiKey.CREATE_TOPICS:
        costs = _of_creations(request, default_partitions)
    elif key == ApiKey.CREATE_PARTITIONS:
        costs = _of_growth(request, image)
    else:
        return _of_deletions(request, version, image)
    return [(row, count if count <= MAX_REQUEST_PARTITIONS else 0) for row, count in costs]


def add_refused(key: ApiKey, answer: Any, refused: list[Any]) -> Any:
    """Returns the answer with the refused rows added."""
    field = {ApiKey.CREATE_TOPICS: "topics", ApiKey.CREATE_PARTITIONS: "results", ApiKey.DELETE_TOPICS: "responses"}[
        key
    ]
    return replace(answer, **{field: [*getattr(answer, field), *refused]}) if refused else answer


def _of_creations(request: CreateTopicsRequest, default_partitions: int) -> list[Cost]:
    return [
        (
            topic,
            0
            if request.validate_only
            else len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default_partitions),
        )
        for topic in request.topics
    ]


def _of_growth(request: CreatePartitionsRequest, image: MetadataImage) -> list[Cost]:
    def added(name: str, count: int) -> int:
        known = image.topics.get(name)
        return 0 if known is None or request.validate_only else max(count - len(known.partitions), 0)

    return [(topic, added(topic.name, topic.count)) for topic in request.topics]


def _of_deletions(request: DeleteTopicsRequest, version: int, image: MetadataImage) -> list[Cost]:
    def lost(name: str | None) -> int:
        known = None if name is None else image.topics.get(name)
        return 0 if known is None else len(known.partitions)

    if version < _BY_ID_SINCE:
        return [(name, lost(name)) for name in request.topic_names]
    return [(topic, lost(topic.name or image.topic_names.get(topic.topic_id))) for topic in request.topics]


def _rows_field(key: ApiKey, version: int) -> str:
    return "topic_names" if key == ApiKey.DELETE_TOPICS and version < _BY_ID_SINCE else "topics"


def _refusal(key: ApiKey, row: Any) -> Any:
    if key == ApiKey.CREATE_TOPICS:
        return CreatableTopicResult(name=row.name, error_code=_CODE, error_message=_MESSAGE)
    if key == ApiKey.CREATE_PARTITIONS:
        return CreatePartitionsTopicResult(name=row.name, error_code=_CODE, error_message=_MESSAGE)
    if isinstance(row, str):
        return DeletableTopicResult(name=row, error_code=_CODE, error_message=_MESSAGE)
    return DeletableTopicResult(name=row.name, topic_id=row.topic_id, error_code=_CODE, error_message=_MESSAGE)
