"""Metadata: v0-v13.

Behaviour: returns the live brokers, with their addresses for the client's listener, and the requested topics, or all:
v0 with an empty list, later with null. An unknown topic is UNKNOWN_TOPIC_OR_PARTITION. If both the client and the
broker's configuration allow it, its creation starts, and the client finds it when it retries, as in Kafka. A topic that
is listed twice is answered once.

Version notes: v4 lets a client forbid creation. v10 has topic ids, v12 finds topics by them; if both are given, the id
wins. v8 and later have the authorized operations: all of them without an authorizer.

A replica is offline if its broker isn't alive, has no address for that listener, or has a failed log directory; an
offline leader is -1. As in Kafka, a replica whose log directory here is offline isn't listed as in sync either; unlike
there, its leader epoch stays. v0 has no offline replicas: it leaves out those of missing brokers, and returns
REPLICA_NOT_AVAILABLE.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST; of partitions
LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND (v6+) if its leader has no such listener, REPLICA_NOT_AVAILABLE (v0).

KIPs: 4, 430, 516.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from operator import is_
from typing import Final

from msgspec.structs import replace

from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.authorizer.resources import ALL_CLUSTER_OPERATIONS, ALL_TOPIC_OPERATIONS
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics as guards
from lowtide.broker.network.endpoints import (
    controller_for,
    endpoints_for,
    leader_for,
    local_endpoint,
    offline_replicas,
    with_local,
)
from lowtide.broker.network.routing.answer_cache import AnswerCache
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Answer
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage, TopicImage
from lowtide.metadata.records import Listener
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from lowtide.protocol.types import ZERO_TOPIC_ID, BrokerId, TopicId
from lowtide.replication.topic_names import INTERNAL_TOPICS, check_topic_name

KEPT_ANSWERS = 256
_KEPT_PARTITIONS = 100
"""The number of kept answers, and the partitions of the largest: a megabyte or two in all."""

PARTITIONS_A_STEP = 50
TOPICS_A_STEP = 100
"""Some two tenths of a millisecond's work each. A row that is not kept is built in steps of its own."""

_AnswerKey = tuple[str, int, str | None, TopicId]

_NOT_ASKED = -(2**31)
_NULL_MEANS_ALL_SINCE = 1
_LOOKUP_BY_ID_SINCE = 12
_LISTENER_NOT_FOUND_SINCE = 6
_ROWS_DIFFER_SINCE = (0, 1, _LISTENER_NOT_FOUND_SINCE)
"""The versions in which rows changed."""
_AUTHORIZED_OPERATIONS_SINCE = 8

CUT: Final = Cut(levels=(("topics", "topics"),), names=("name", "topic_id"), changes=True)


class _RowsNow:
    """Rows of topics. They are kept while the brokers and what is offline (`valid_for`) and the topic do not change.

    An answer that is built in steps continues with the object that it began with.
    """

    def __init__(
        self,
        valid_for: tuple[object, object, Collection[tuple[str, int]]],
        own_id: BrokerId,
        endpoints: dict[BrokerId, Listener],
        version: int,
    ) -> None:
        self.valid_for = valid_for
        self.endpoints = endpoints
        self._own_id = own_id
        self._failed = valid_for[2]
        self._version = version
        self._kept: dict[str, tuple[TopicImage, MetadataResponseTopic]] = {}

    def of(self, topic: TopicImage, image: MetadataImage) -> Generator[None, None, MetadataResponseTopic]:
        """Returns the row of a topic, in steps."""
        kept = self._kept.get(topic.name)
        if kept is not None and kept[0] is topic:
            return kept[1]
        partitions = []
        for number in range(len(topic.partitions)):
            partitions.append(self._partition(image, topic, number))
            if number % PARTITIONS_A_STEP == PARTITIONS_A_STEP - 1:
                yield
        row = MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=partitions,
        )
        self._kept[topic.name] = (topic, row)
        yield
        return row

    def _partition(self, image: MetadataImage, topic: TopicImage, number: int) -> MetadataResponsePartition:
        state, here, failed = topic.partitions[number], self._own_id, self._failed
        offline = offline_replicas(image, topic, number, self.endpoints, (here, failed))
        leader, error = leader_for(image, state, self.endpoints, offline)
        replicas = list(state.replicas)
        in_sync = [member for member in state.isr if member != here or (topic.name, number) not in failed]
        if self._version < _LISTENER_NOT_FOUND_SINCE and error == ErrorCode.LISTENER_NOT_FOUND:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        if self._version == 0:
            replicas, in_sync = [[each for each in ids if each in self.endpoints] for ids in (replicas, in_sync)]
            if error == ErrorCode.NONE and (len(replicas) < len(state.replicas) or len(in_sync) < len(state.isr)):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        return MetadataResponsePartition(
            error_code=error,
            partition_index=number,
            leader_id=leader,
            leader_epoch=state.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=offline,
        )

    def keep_only(self, image: MetadataImage) -> None:
        """Drops the rows of deleted topics, if there are many."""
        if len(self._kept) > 2 * len(image.topics) + 16:
            self._kept = {name: kept for name, kept in self._kept.items() if name in image.topics}


class MetadataHandler:
    """Answers Metadata requests."""

    def __init__(self, broker: BrokerContext, administrator: TopicAdministrator) -> None:
        self._broker = broker
        self._administrator = administrator
        self._rows: dict[tuple[str, int], _RowsNow] = {}
        self.answers = AnswerCache(KEPT_ANSWERS)

    def _find(
        self,
        rows: _RowsNow,
        wanted: MetadataRequestTopic,
        image: MetadataImage,
        version: int,
        creator: RequestContext | None,
    ) -> Generator[None, None, MetadataResponseTopic]:
        """Returns the row of a topic. A missing topic is created for the client of `creator`, if given."""
        if wanted.topic_id != ZERO_TOPIC_ID and version >= _LOOKUP_BY_ID_SINCE:
            topic = image.topic_by_id(wanted.topic_id)
            if topic is None:
                return _unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
            return (yield from rows.of(topic, image))
        if wanted.name is None:
            return _unknown(ErrorCode.INVALID_REQUEST, "", wanted.topic_id)
        topic = image.topics.get(wanted.name)
        if topic is not None:
            return (yield from rows.of(topic, image))
        if check_topic_name(wanted.name) is not None:
            return _unknown(ErrorCode.INVALID_TOPIC_EXCEPTION, wanted.name, ZERO_TOPIC_ID)
        if creator is not None:
            self._administrator.create_automatically(wanted.name, creator)
        return _unknown(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted.name, ZERO_TOPIC_ID)

    def _rows_under(self, image: MetadataImage, listener_name: str, version: int) -> _RowsNow:
        """Returns the rows for a listener and a version that are right under an image."""
        key = (listener_name, max(since for since in _ROWS_DIFFER_SINCE if since <= version))
        replicas, rows = self._broker.replicas, self._rows.get(key)
        valid_for = (image.brokers, image.offline_replicas, replicas.offline.keys)
        if rows is None or not all(map(is_, valid_for, rows.valid_for)):
            endpoints = endpoints_for(image, listener_name)
            rows = self._rows[key] = _RowsNow(valid_for, replicas.broker_id, endpoints, key[1])
        return rows

    def handle(self, request: MetadataRequest, context: RequestContext) -> Answer[MetadataResponse]:
        """Answers at once, or in slices."""
        broker = self._broker
        image, wanted = broker.metadata.image, request.topics
        key: _AnswerKey | None = None
        if (
            wanted is not None
            and len(wanted) == 1
            and not request.include_topic_authorized_operations
            and not request.include_cluster_authorized_operations
        ):
            key = context.connection.listener_name, context.api_version, wanted[0].name, wanted[0].topic_id
            kept: MetadataResponse | None = self.answers.find(key, image, broker.replicas.offline.keys)
            if kept is not None:
                return kept
        response = broker.turns.answer(self._steps(request, image, context))
        if key is not None and isinstance(response, MetadataResponse) and self._may_be_kept(response):
            self.answers.keep(key, response)
        return response

    def _may_be_kept(self, response: MetadataResponse) -> bool:
        """Returns whether an answer is small, without an error, and the same for all clients of a listener."""
        topic = response.topics[0]
        return (
            topic.error_code == ErrorCode.NONE
            and len(topic.partitions) <= _KEPT_PARTITIONS
            and not self._broker.config.advertises_local_address
        )

    def _steps(
        self, request: MetadataRequest, image: MetadataImage, context: RequestContext
    ) -> Generator[None, None, MetadataResponse]:
        version, connection = context.api_version, context.connection
        local = local_endpoint(self._broker.config, connection)
        rows = self._rows_under(image, connection.listener_name, version)
        topics = []
        if request.topics is None or (not request.topics and version < _NULL_MEANS_ALL_SINCE):
            for number, topic in enumerate(image.topics.values(), 1):
                topics.append((yield from rows.of(topic, image)))
                if number % TOPICS_A_STEP == 0:
                    yield
        else:
            creator = (
                context if request.allow_auto_topic_creation and self._broker.config.auto_create_topics_enable else None
            )
            for wanted in request.topics if len(request.topics) == 1 else _distinct(request.topics):
                row = yield from self._find(rows, wanted, image, version, creator)
                topics.append(row)
        rows.keep_only(image)
        cluster_operations = _NOT_ASKED
        if version >= _AUTHORIZED_OPERATIONS_SINCE:
            if request.include_topic_authorized_operations:
                for number, made in enumerate(topics):
                    topics[number] = _with_operations(made)
                    if number % TOPICS_A_STEP == TOPICS_A_STEP - 1:
                        yield
            if request.include_cluster_authorized_operations:
                cluster_operations = ALL_CLUSTER_OPERATIONS
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                MetadataResponseBroker(
                    node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
                )
                for broker_id, endpoint in with_local(rows.endpoints, self._broker.replicas.broker_id, local).items()
            ],
            cluster_id=image.cluster_id,
            controller_id=controller_for(image, rows.endpoints),
            topics=topics,
            cluster_authorized_operations=cluster_operations,
        )


def handler(broker: BrokerContext, administrator: TopicAdministrator) -> HandlerSpec:
    """Returns the handler."""
    made = MetadataHandler(broker, administrator)
    return HandlerSpec(
        key=ApiKey.METADATA,
        guard=guards.metadata,
        handle=made.handle,
        answers=made.answers,
        cut=CUT,
    )


def _distinct(topics: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.name, topic.topic_id): topic for topic in topics}.values())


def _unknown(error: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, is_internal=False, partitions=[])


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    if topic.error_code != ErrorCode.NONE:
        return topic
    return replace(topic, topic_authorized_operations=ALL_TOPIC_OPERATIONS)
