"""ListConfigResources (key 74): the names of what can be configured (KIP-1142; in version 0 ListClientMetricsResources, KIP-714).

An empty `resource_types` asks for all types. Field by field this is Kafka's ListConfigResourcesRequest/Response.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, Versions

CLIENT_METRICS: int = 16
"""The type of what version 0 lists."""


class ListConfigResourcesRequest(ApiMessage, kw_only=True):
    """The types to list."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("0+")

    resource_types: Annotated[list[Int8], Versions("1+")] = msgspec.field(default_factory=list)


class ConfigResource(Message, kw_only=True):
    """One resource, by name and type."""

    resource_name: String
    resource_type: Annotated[Int8, Versions("1+")] = CLIENT_METRICS


class ListConfigResourcesResponse(ApiMessage, kw_only=True):
    """The answer."""

    VERSIONS: ClassVar = Versions("0-1")
    FLEXIBLE: ClassVar = Versions("0+")

    throttle_time_ms: Int32
    error_code: Int16
    config_resources: list[ConfigResource]
