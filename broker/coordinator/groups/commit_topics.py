"""The topics of a commit that exist, and the response rows: the same for OffsetCommit and TxnOffsetCommit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId

RequestTopicT = TypeVar("RequestTopicT", bound=Any)
ResponseTopicT = TypeVar("ResponseTopicT", bound=Any)


class CommitTopics(Generic[RequestTopicT, ResponseTopicT]):
    """The topics of one request: the `known` ones with names and ids, and the rows of the `refused` ones."""

    __slots__ = ("_row", "_topic", "known", "refused")

    def __init__(
        self,
        image: MetadataImage,
        topics: Iterable[RequestTopicT],
        types: tuple[type[ResponseTopicT], type[Any]],
        *,
        by_id: bool,
    ) -> None:
        """`types` are the types of the response's topics and of their rows."""
        self._topic, self._row = types
        self.known: list[RequestTopicT] = []
        self.refused: list[ResponseTopicT] = []
        for topic in topics:
            found = image.topic_by_id(topic.topic_id) if by_id else image.topics.get(topic.name)
            if found is None:
                error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                topic_id = topic.topic_id if by_id else ZERO_TOPIC_ID
                self.refused.append(
                    self._rows(topic.name, topic_id, (row.partition_index for row in topic.partitions), error)
                )
                continue
            count, there = len(found.partitions), topic.partitions
            missing = [row.partition_index for row in there if not 0 <= row.partition_index < count]
            if missing:
                there = [row for row in there if 0 <= row.partition_index < count]
                self.refused.append(
                    self._rows(found.name, found.topic_id, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                )
            if there:
                self.known.append(replace(topic, name=found.name, topic_id=found.topic_id, partitions=there))

    def failed(self, error: ErrorCode) -> list[ResponseTopicT]:
        """Returns the rows of a response in which nothing was committed."""
        rows = [
            self._rows(topic.name, topic.topic_id, (row.partition_index for row in topic.partitions), error)
            for topic in self.known
        ]
        return self.merged(rows)

    def merged(self, rows: list[ResponseTopicT]) -> list[ResponseTopicT]:
        """Returns the rows of all topics, one for each topic."""
        if not self.refused:
            return rows
        merged: dict[tuple[str, TopicId], ResponseTopicT] = {}
        for row in (*self.refused, *rows):
            there = merged.setdefault((row.name, row.topic_id), row)
            if there is not row:
                there.partitions = [*there.partitions, *row.partitions]
        return list(merged.values())

    def _rows(self, name: str, topic_id: TopicId, partitions: Iterable[int], error: ErrorCode) -> ResponseTopicT:
        rows = [self._row(partition_index=number, error_code=error) for number in partitions]
        made: ResponseTopicT = self._topic(name=name, topic_id=topic_id, partitions=rows)
        return made
