"""CreateTopics (key 19): creates topics, with partitions placed by the broker or manually.

`num_partitions` and `replication_factor` are -1 for the broker's default (KIP-464), and must be -1 with manual
assignments.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import (
    ApiMessage,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Tagged,
    Uuid,
    Versions,
    versions,
)
from lowtide.protocol.types import ZERO_TOPIC_ID


class CreatableReplicaAssignment(Message, kw_only=True):
    """The replicas of one partition; the first is the preferred leader."""

    partition_index: Int32
    broker_ids: list[Int32]


class CreatableTopicConfig(Message, kw_only=True):
    name: String
    value: String | None


class CreatableTopic(Message, kw_only=True):
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: list[CreatableReplicaAssignment]
    configs: list[CreatableTopicConfig]


@versions("2-7", flexible="5+")
class CreateTopicsRequest(ApiMessage, kw_only=True):
    """`validate_only` checks the request without creating topics."""

    topics: list[CreatableTopic]
    timeout_ms: Int32 = 60_000
    validate_only: Annotated[Bool, Versions("1+")] = False


class CreatableTopicConfigs(Message, kw_only=True):
    """One effective configuration value of the new topic (KIP-525)."""

    name: String
    value: String | None
    read_only: Bool
    config_source: Int8 = -1
    is_sensitive: Bool


class CreatableTopicResult(Message, kw_only=True):
    """`topic_config_error_code` says why the configuration is missing."""

    name: String
    topic_id: Annotated[Uuid, Versions("7+")] = ZERO_TOPIC_ID
    error_code: Int16
    error_message: Annotated[String | None, Versions("1+")] = None
    topic_config_error_code: Annotated[Int16, Tagged(0, "5+")] = 0
    num_partitions: Annotated[Int32, Versions("5+")] = -1
    replication_factor: Annotated[Int16, Versions("5+")] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, Versions("5+")] = msgspec.field(default_factory=list)


@versions("2-7", flexible="5+")
class CreateTopicsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Annotated[Int32, Versions("2+")] = 0
    topics: list[CreatableTopicResult]
