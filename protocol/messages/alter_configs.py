"""AlterConfigs (key 33): replaces the configuration of topics and brokers (KIP-133).

Keys that are not named are deleted.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, Versions


class AlterableConfig(Message, kw_only=True):
    name: String
    value: String | None


class AlterConfigsResource(Message, kw_only=True):
    """A resource and all the keys that it is to have."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


class AlterConfigsRequest(ApiMessage, kw_only=True):
    """`validate_only` checks the changes without making them."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    resources: list[AlterConfigsResource]
    validate_only: Bool


class AlterConfigsResourceResponse(Message, kw_only=True):
    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(ApiMessage, kw_only=True):
    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]
