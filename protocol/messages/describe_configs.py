"""DescribeConfigs (key 32): the configuration of topics, brokers and other resources, with the source of each value.

A null or empty `configuration_keys` requests all keys. `value` is null for a secret. Sources and types are Kafka's
numbers (KIP-226, KIP-569).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, Versions, versions


class DescribeConfigsResource(Message, kw_only=True):
    resource_type: Int8
    resource_name: String
    configuration_keys: list[String] | None


@versions("1-4", flexible="4+")
class DescribeConfigsRequest(ApiMessage, kw_only=True):
    resources: list[DescribeConfigsResource]
    include_synonyms: Annotated[Bool, Versions("1+")] = False
    include_documentation: Annotated[Bool, Versions("3+")] = False


class DescribeConfigsSynonym(Message, kw_only=True):
    """A source of the value; the first in the list is in effect."""

    name: Annotated[String, Versions("1+")]
    value: Annotated[String | None, Versions("1+")]
    source: Annotated[Int8, Versions("1+")]


class DescribeConfigsResourceResult(Message, kw_only=True):
    name: String
    value: String | None
    read_only: Bool
    config_source: Annotated[Int8, Versions("1+")] = -1
    is_sensitive: Bool
    synonyms: Annotated[list[DescribeConfigsSynonym], Versions("1+")] = msgspec.field(default_factory=list)
    config_type: Annotated[Int8, Versions("3+")] = 0
    documentation: Annotated[String | None, Versions("3+")] = None


class DescribeConfigsResult(Message, kw_only=True):
    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String
    configs: list[DescribeConfigsResourceResult]


@versions("1-4", flexible="4+")
class DescribeConfigsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult]
