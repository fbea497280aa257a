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

from lowtide.broker.network.routing.routes import ChangedPartitions
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopicResult
from lowtide.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest
from lowtide.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest
from lowtide.replication.new_topics import MAX_REQUEST_PARTITIONS

_BY_ID_SINCE: Final = 6
_REFUSED: Final[Mapping[str, Any]] = {
    "error_code": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    "error_message": "The quota of changed partitions (controller_mutation_rate) is used up",
}

Cost: TypeAlias = "tuple[Any, int]"
"""A row of a request, and how many partitions it changes."""


class MutationAdmission(msgspec.Struct, frozen=True):
    """The admitted part of a request, the answers to refused rows, and how long the client must wait."""

    request: Any
    refused: list[Any]
    wait_ms: int


def admit(
    changes: ChangedPartitions, request: Any, version: int, costs: list[Cost], take: Callable[[int, bool], int]
) -> MutationAdmission:
    """Admits the rows of a request in their order.

    `take` charges partitions to the client's rate. If its second argument is true, it does so even if nothing is left.
    It returns how long the client must wait, or 0.
    """
    refuses, wait_ms = version >= changes.refused_since, 0
    allowed: list[Any] = []
    refused: list[Any] = []
    for row, count in costs:
        row_wait_ms = take(count, not refuses) if count else 0
        wait_ms = max(wait_ms, row_wait_ms)
        (refused if refuses and row_wait_ms else allowed).append(row)
    if refused:
        request = replace(request, **{changes.rows(version): allowed})
    return MutationAdmission(request, [changes.refused(row) for row in refused], wait_ms)


def costs_of(
    changes: ChangedPartitions, request: Any, version: int, image: MetadataImage, default_partitions: int
) -> list[Cost]:
    """Returns how many partitions each row changes: 0 for one above the limit of a request, which is refused anyway."""
    costs = changes.costs(request, version, image, default_partitions)
    return [(row, count if count <= MAX_REQUEST_PARTITIONS else 0) for row, count in costs]


def add_refused(changes: ChangedPartitions, answer: Any, refused: list[Any]) -> Any:
    """Returns the answer with the rows that were refused."""
    return replace(answer, **{changes.answers: [*getattr(answer, changes.answers), *refused]}) if refused else answer


def _of_creations(
    request: CreateTopicsRequest, _version: int, _image: MetadataImage, default_partitions: int
) -> list[Cost]:
    return [
        (
            topic,
            0
            if request.validate_only
            else len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default_partitions),
        )
        for topic in request.topics
    ]


def _of_growth(request: CreatePartitionsRequest, _version: int, image: MetadataImage, _default: int) -> list[Cost]:
    def added(name: str, count: int) -> int:
        known = image.topics.get(name)
        return 0 if known is None or request.validate_only else max(count - len(known.partitions), 0)

    return [(topic, added(topic.name, topic.count)) for topic in request.topics]


def _of_deletions(request: DeleteTopicsRequest, version: int, image: MetadataImage, _default: int) -> list[Cost]:
    def lost(name: str | None) -> int:
        known = None if name is None else image.topics.get(name)
        return 0 if known is None else len(known.partitions)

    if version < _BY_ID_SINCE:
        return [(name, lost(name)) for name in request.topic_names]
    return [(topic, lost(topic.name or image.topic_names.get(topic.topic_id))) for topic in request.topics]


def _refused_deletion(row: Any) -> DeletableTopicResult:
    if isinstance(row, str):
        return DeletableTopicResult(name=row, **_REFUSED)
    return DeletableTopicResult(name=row.name, topic_id=row.topic_id, **_REFUSED)


CREATIONS: Final = ChangedPartitions(
    refused_since=6,
    costs=_of_creations,
    refused=lambda row: CreatableTopicResult(name=row.name, **_REFUSED),
    answers="topics",
)
GROWTH: Final = ChangedPartitions(
    refused_since=3,
    costs=_of_growth,
    refused=lambda row: CreatePartitionsTopicResult(name=row.name, **_REFUSED),
    answers="results",
)
DELETIONS: Final = ChangedPartitions(
    refused_since=5,
    costs=_of_deletions,
    refused=_refused_deletion,
    answers="responses",
    rows=lambda version: "topic_names" if version < _BY_ID_SINCE else "topics",
)
