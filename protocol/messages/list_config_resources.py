"""ListConfigResources (key 74): the names of resources with a configuration (KIP-1142).

Version 0 is ListClientMetricsResources (KIP-714): these resources alone. An empty `resource_types` requests all types.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.schema import ApiMessage, Int8, Int16, Int32, Message, String, Versions, versions


@versions("0-1", flexible="0+")
class ListConfigResourcesRequest(ApiMessage, kw_only=True):
    resource_types: Annotated[list[Int8], Versions("1+")] = msgspec.field(default_factory=list)


class ConfigResource(Message, kw_only=True):
    resource_name: String
    resource_type: Annotated[Int8, Versions("1+")] = ConfigResourceType.CLIENT_METRICS


@versions("0-1", flexible="0+")
class ListConfigResourcesResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32
    error_code: Int16
    config_resources: list[ConfigResource]
