"""Metadata: v0-v13.

Behaviour: the live brokers and the topics asked for, or all: v0 with an empty list, later with null. A topic that doesn't exist is
UNKNOWN_TOPIC_OR_PARTITION; where both the client and the broker's configuration allow it, its creation is begun, and the client finds
it when it asks again, as in Kafka. Names repeated in a request are answered once.

Version notes: v4 lets a client forbid creation. v10 has topic ids, v12 finds topics by them; where both are given the id counts. v8 and
later tell the operations that a client may do: all, for there is no authorizer yet.

A partition whose log directory is offline here has no leader, and this broker is among its offline replicas and not in sync, as in Kafka;
unlike there, its leader epoch stays.

Errors: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INVALID_TOPIC_EXCEPTION, INVALID_REQUEST; LEADER_NOT_AVAILABLE in a partition.

KIPs: 4, 430, 516.
"""

from __future__ import annotations

from collections.abc import Collection

from lowtide.broker.connection import RequestContext
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import HandlerSpec
from lowtide.broker.replica_manager import INTERNAL_TOPICS, ReplicaManager
from lowtide.broker.topics import TopicAdministrator
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import NO_LEADER
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
from lowtide.replication.controller import check_topic_name

ALL_TOPIC_OPERATIONS = 3576
ALL_CLUSTER_OPERATIONS = 8096
"""Bit fields of what a client may do where nothing is forbidden (KIP-430)."""

KEPT_ANSWERS = 256
_KEPT_PARTITIONS = 100
"""How many answers are kept, and the largest: a megabyte or two in all."""

_AnswerKey = tuple[int, str | None, TopicId]

_NOT_ASKED = -(2**31)
_NULL_MEANS_ALL_SINCE = 1
_LOOKUP_BY_ID_SINCE = 12
_AUTHORIZED_OPERATIONS_SINCE = 8


class _Rows:
    """Answer rows of topics, kept while a topic stays what it is, and the same partitions are offline here."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._offline = replicas.offline
        self._kept: dict[str, tuple[TopicImage, MetadataResponseTopic]] = {}

    def of(self, topic: TopicImage) -> MetadataResponseTopic:
        if self._offline is not self._replicas.offline:
            self._offline = self._replicas.offline
            self._kept.clear()
        kept = self._kept.get(topic.name)
        if kept is not None and kept[0] is topic:
            return kept[1]
        row = _topic(topic, self._offline, self._replicas.broker_id)
        self._kept[topic.name] = (topic, row)
        return row

    def keep_only(self, image: MetadataImage) -> None:
        """Forget deleted topics, now and then."""
        if len(self._kept) > 2 * len(image.topics) + 16:
            self._kept = {name: kept for name, kept in self._kept.items() if name in image.topics}


class _Answers:
    """Whole answers about one topic, kept while nothing changes: what clients ask for again and again, and all of them together."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._valid_for: tuple[object, object] = (None, None)
        self._kept: dict[_AnswerKey, MetadataResponse] = {}

    def find(self, key: _AnswerKey, image: MetadataImage) -> MetadataResponse | None:
        """The answer that was kept under this image and with the same partitions offline."""
        if self._valid_for[0] is not image or self._valid_for[1] is not self._replicas.offline:
            self._valid_for = (image, self._replicas.offline)
            self._kept.clear()
        return self._kept.get(key)

    def keep(self, key: _AnswerKey, response: MetadataResponse) -> None:
        """Keep an answer that `find` has just not found."""
        topic = response.topics[0]
        if topic.error_code == ErrorCode.NONE and len(topic.partitions) <= _KEPT_PARTITIONS and len(self._kept) < KEPT_ANSWERS:
            self._kept[key] = response


def handler(broker: BrokerContext, administrator: TopicAdministrator) -> HandlerSpec:
    """The handler over a broker's state."""
    rows = _Rows(broker.replicas)
    answers = _Answers(broker.replicas)

    def find(wanted: MetadataRequestTopic, image: MetadataImage, version: int, *, create: bool) -> MetadataResponseTopic:
        if wanted.topic_id != ZERO_TOPIC_ID and version >= _LOOKUP_BY_ID_SINCE:
            topic = image.topic_by_id(wanted.topic_id)
            return rows.of(topic) if topic is not None else _unknown(ErrorCode.UNKNOWN_TOPIC_ID, None, wanted.topic_id)
        if wanted.name is None:
            return _unknown(ErrorCode.INVALID_REQUEST, "", wanted.topic_id)
        topic = image.topics.get(wanted.name)
        if topic is not None:
            return rows.of(topic)
        if check_topic_name(wanted.name) is not None:
            return _unknown(ErrorCode.INVALID_TOPIC_EXCEPTION, wanted.name, ZERO_TOPIC_ID)
        if create:
            administrator.create_automatically(wanted.name)
        return _unknown(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, wanted.name, ZERO_TOPIC_ID)

    def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        image, version, wanted = broker.metadata.image, context.api_version, request.topics
        if (
            wanted is None
            or len(wanted) != 1
            or request.include_topic_authorized_operations
            or request.include_cluster_authorized_operations
        ):
            return answer(request, image, version)
        key = (version, wanted[0].name, wanted[0].topic_id)
        response = answers.find(key, image)
        if response is None:
            response = answer(request, image, version)
            answers.keep(key, response)
        return response

    def answer(request: MetadataRequest, image: MetadataImage, version: int) -> MetadataResponse:
        if request.topics is None or (not request.topics and version < _NULL_MEANS_ALL_SINCE):
            topics = [rows.of(topic) for topic in image.topics.values()]
        else:
            create = request.allow_auto_topic_creation and broker.config.auto_create_topics_enable
            wanted = request.topics if len(request.topics) == 1 else _distinct(request.topics)
            topics = [find(topic, image, version, create=create) for topic in wanted]
        rows.keep_only(image)
        cluster_operations = _NOT_ASKED
        if version >= _AUTHORIZED_OPERATIONS_SINCE:
            if request.include_topic_authorized_operations:
                topics = [_with_operations(topic) for topic in topics]
            if request.include_cluster_authorized_operations:
                cluster_operations = ALL_CLUSTER_OPERATIONS
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                MetadataResponseBroker(node_id=node.broker_id, host=node.listeners[0].host, port=node.listeners[0].port, rack=node.rack)
                for node in image.brokers.values()
            ],
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics=topics,
            cluster_authorized_operations=cluster_operations,
        )

    return HandlerSpec(key=ApiKey.METADATA, handle=handle, answers_again=KEPT_ANSWERS)


def _distinct(topics: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    return list({(topic.name, topic.topic_id): topic for topic in topics}.values())


def _unknown(error: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=error, name=name, topic_id=topic_id, is_internal=False, partitions=[])


def _topic(topic: TopicImage, offline: Collection[tuple[str, int]], broker_id: BrokerId) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(index, partition, offline_id=broker_id if (topic.name, index) in offline else None)
            for index, partition in enumerate(topic.partitions)
        ],
    )


def _partition(index: int, partition: PartitionImage, *, offline_id: BrokerId | None) -> MetadataResponsePartition:
    """One row; `offline_id` is the broker that can't serve the partition."""
    leader = NO_LEADER if partition.leader == offline_id else partition.leader
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if leader != NO_LEADER else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=[broker_id for broker_id in partition.isr if broker_id != offline_id],
        offline_replicas=[] if offline_id is None else [offline_id],
    )


def _with_operations(topic: MetadataResponseTopic) -> MetadataResponseTopic:
    if topic.error_code != ErrorCode.NONE:
        return topic
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=ALL_TOPIC_OPERATIONS,
    )
