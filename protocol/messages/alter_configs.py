"""AlterConfigs (key 33): replace all that is set on topics and brokers; what isn't named is deleted (KIP-133).

Field by field this is Kafka's AlterConfigsRequest/Response.
"""

from __future__ import annotations

from typing import ClassVar

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, Versions


class AlterableConfig(Message, kw_only=True):
    """One key as it should be."""

    name: String
    value: String | None


class AlterConfigsResource(Message, kw_only=True):
    """A resource, by type and name, and all that should be set on it."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


class AlterConfigsRequest(ApiMessage, kw_only=True):
    """Configurations to replace, or only to check (`validate_only`)."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    resources: list[AlterConfigsResource]
    validate_only: Bool


class AlterConfigsResourceResponse(Message, kw_only=True):
    """One resource changed, or why not."""

    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(ApiMessage, kw_only=True):
    """The answer, resource by resource."""

    VERSIONS: ClassVar = Versions("0-2")
    FLEXIBLE: ClassVar = Versions("2+")

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]
