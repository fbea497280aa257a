"""Metadata (key 3): brokers, topics, partitions and their leaders.

A null list of topics requests all, an empty one none; in version 0 an empty list requests all. From version 10 topics
can be identified by id (with a null name from version 12).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int16, Int32, Message, Nullable, String, Uuid, Versions, versions
from lowtide.protocol.types import ZERO_TOPIC_ID

OPERATIONS_NOT_ASKED = -(2**31)
"""The client did not request authorized operations (KIP-430)."""


class MetadataRequestTopic(Message, kw_only=True):
    """A topic by name, or by id with a null name."""

    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    name: Annotated[String | None, Nullable("10+")]


@versions("0-13", flexible="9+")
class MetadataRequest(ApiMessage, kw_only=True):
    topics: Annotated[list[MetadataRequestTopic] | None, Nullable("1+")]
    allow_auto_topic_creation: Annotated[Bool, Versions("4+")] = True
    include_cluster_authorized_operations: Annotated[Bool, Versions("8-10")] = False
    include_topic_authorized_operations: Annotated[Bool, Versions("8+")] = False


class MetadataResponseBroker(Message, kw_only=True):
    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[String | None, Versions("1+"), Nullable("1+")] = None


class MetadataResponsePartition(Message, kw_only=True):
    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, Versions("7+")] = -1
    replica_nodes: list[Int32]
    isr_nodes: list[Int32]
    offline_replicas: Annotated[list[Int32], Versions("5+")] = msgspec.field(default_factory=list)


class MetadataResponseTopic(Message, kw_only=True):
    error_code: Int16
    name: Annotated[String | None, Nullable("12+")]
    topic_id: Annotated[Uuid, Versions("10+")] = ZERO_TOPIC_ID
    is_internal: Annotated[Bool, Versions("1+")] = False
    partitions: list[MetadataResponsePartition]
    topic_authorized_operations: Annotated[Int32, Versions("8+")] = OPERATIONS_NOT_ASKED


@versions("0-13", flexible="9+")
class MetadataResponse(ApiMessage, kw_only=True):
    """`error_code` applies to the whole request, from version 13."""

    throttle_time_ms: Annotated[Int32, Versions("3+")] = 0
    brokers: list[MetadataResponseBroker]
    cluster_id: Annotated[String | None, Versions("2+"), Nullable("2+")] = None
    controller_id: Annotated[Int32, Versions("1+")] = -1
    topics: list[MetadataResponseTopic]
    cluster_authorized_operations: Annotated[Int32, Versions("8-10")] = OPERATIONS_NOT_ASKED
    error_code: Annotated[Int16, Versions("13+")] = 0
