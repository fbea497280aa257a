"""AlterConfigs (key 33): replaces the configuration of topics and brokers (KIP-133).

Keys that are not named are deleted.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, versions


class AlterableConfig(Message, kw_only=True):
    name: String
    value: String | None


class AlterConfigsResource(Message, kw_only=True):
    """A resource and its complete new configuration."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


@versions("0-2", flexible="2+")
class AlterConfigsRequest(ApiMessage, kw_only=True):
    """`validate_only` checks the changes without making them."""

    resources: list[AlterConfigsResource]
    validate_only: Bool


class AlterConfigsResourceResponse(Message, kw_only=True):
    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String


@versions("0-2", flexible="2+")
class AlterConfigsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]
