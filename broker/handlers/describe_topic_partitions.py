"""DescribeTopicPartitions: v0-v0.

Behaviour: returns the requested topics, or all if none is named, ordered by name. A page has as many partitions as the
client requests and `max.request.partition.size.limit` allows, at least one. If there are more, `next_cursor` names the
first partition of the next page, which the client sends as the cursor of its next request. The cursor's topic must be
among the named ones. A topic that is listed twice is answered once. A replica is offline if its broker isn't alive, has
no address for the client's listener, or has a failed log directory. The last known eligible leaders are always empty:
the last member of the in-sync set stays in it when it fails.

Errors: UNKNOWN_TOPIC_OR_PARTITION and INVALID_TOPIC_EXCEPTION for a named topic; INVALID_REQUEST for each of them if
the cursor is invalid. A partition without a leader is no error: its leader is -1.

KIPs: 430, 966.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence

from lowtide.broker.authorizer.resources import ALL_TOPIC_OPERATIONS
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics as guards
from lowtide.broker.network.endpoints import endpoints_for, leader_for, offline_replicas
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage, TopicImage
from lowtide.metadata.records import Listener
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from lowtide.protocol.types import BrokerId
from lowtide.replication.topic_names import INTERNAL_TOPICS, check_topic_name

PARTITIONS_A_STEP = 50
_TOPICS_A_STEP = 50
"""Some four tenths of a millisecond's work each."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def steps(
        page: _Page, names: Sequence[str], cursor: Cursor | None
    ) -> Generator[None, None, DescribeTopicPartitionsResponse]:
        yield from page.fill(names, cursor)
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=page.topics, next_cursor=page.next_cursor)

    def handle(
        request: DescribeTopicPartitionsRequest, context: RequestContext
    ) -> Answer[DescribeTopicPartitionsResponse]:
        image, cursor = broker.metadata.image, request.cursor
        names: Collection[str] = {topic.name for topic in request.topics} or image.topics
        if cursor is not None and (cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names)):
            return _refuse_all(request)
        limit = max(1, min(broker.config.max_request_partition_size_limit, request.response_partition_limit))
        first = "" if cursor is None else cursor.topic_name
        page = _Page(
            image,
            endpoints_for(image, context.connection.listener_name),
            (broker.replicas.broker_id, broker.replicas.offline.keys),
            limit,
        )
        return broker.turns.answer(steps(page, sorted(name for name in names if name >= first), cursor))

    return HandlerSpec(key=ApiKey.DESCRIBE_TOPIC_PARTITIONS, guard=guards.describe_topic_partitions, handle=handle)


def _refuse_all(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    """Returns an error for each topic, as often as the request names it: the answer itself has no field for it."""
    rows = [
        DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=rows)


class _Page:
    """The topics of one answer, and where the next begins."""

    def __init__(
        self,
        image: MetadataImage,
        endpoints: Mapping[BrokerId, Listener],
        failed_here: tuple[BrokerId, Collection[tuple[str, int]]],
        limit: int,
    ) -> None:
        self.topics: list[DescribeTopicPartitionsResponseTopic] = []
        self.next_cursor: Cursor | None = None
        self._image = image
        self._endpoints = endpoints
        self._failed_here = failed_here
        self._room = limit

    def fill(self, names: Sequence[str], cursor: Cursor | None) -> Generator[None, None, None]:
        """Adds topics in steps until the page is full. Topics that do not exist take no room."""
        for number, name in enumerate(names):
            if number % _TOPICS_A_STEP == _TOPICS_A_STEP - 1:
                yield
            if self._room == 0:
                self.next_cursor = Cursor(topic_name=name, partition_index=0)
                return
            topic = self._image.topics.get(name)
            if topic is None:
                self._add_unknown(name)
                continue
            start = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
            end = start + self._room
            yield from self._add(topic, start, end)
            if end < len(topic.partitions):
                self.next_cursor = Cursor(topic_name=name, partition_index=end)
                return

    def _add(self, topic: TopicImage, start: int, end: int) -> Generator[None, None, None]:
        partitions = []
        for number in range(start, min(end, len(topic.partitions))):
            partitions.append(self._partition(topic, number))
            if len(partitions) % PARTITIONS_A_STEP == 0:
                yield
        self._room -= len(partitions)
        self.topics.append(
            DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.NONE,
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.name in INTERNAL_TOPICS,
                partitions=partitions,
                topic_authorized_operations=ALL_TOPIC_OPERATIONS,
            )
        )

    def _add_unknown(self, name: str) -> None:
        code = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if check_topic_name(name) is None
            else ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        self.topics.append(
            DescribeTopicPartitionsResponseTopic(
                error_code=code,
                name=name,
                is_internal=name in INTERNAL_TOPICS,
                topic_authorized_operations=ALL_TOPIC_OPERATIONS,
            )
        )

    def _partition(self, topic: TopicImage, number: int) -> DescribeTopicPartitionsResponsePartition:
        state, (here, failed) = topic.partitions[number], self._failed_here
        offline = offline_replicas(self._image, topic, number, self._endpoints, self._failed_here)
        leader, _ = leader_for(self._image, state, self._endpoints, offline)
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE,
            partition_index=number,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=list(state.replicas),
            isr_nodes=[member for member in state.isr if member != here or (topic.name, number) not in failed],
            eligible_leader_replicas=list(state.elr),
            last_known_elr=[],
            offline_replicas=offline,
        )
