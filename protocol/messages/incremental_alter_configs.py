"""IncrementalAlterConfigs (key 44): changes some keys of topics, brokers and other resources (KIP-339).

`config_operation`: 0 sets, 1 deletes, 2 appends to a list, 3 subtracts from one.
"""

from __future__ import annotations

from lowtide.protocol.schema import ApiMessage, Bool, Int8, Int16, Int32, Message, String, versions


class AlterableConfig(Message, kw_only=True):
    name: String
    config_operation: Int8
    value: String | None


class AlterConfigsResource(Message, kw_only=True):
    """A resource and the changes of its keys."""

    resource_type: Int8
    resource_name: String
    configs: list[AlterableConfig]


@versions("0-1", flexible="1+")
class IncrementalAlterConfigsRequest(ApiMessage, kw_only=True):
    """`validate_only` checks the changes without making them."""

    resources: list[AlterConfigsResource]
    validate_only: Bool


class AlterConfigsResourceResponse(Message, kw_only=True):
    error_code: Int16
    error_message: String | None
    resource_type: Int8
    resource_name: String


@versions("0-1", flexible="1+")
class IncrementalAlterConfigsResponse(ApiMessage, kw_only=True):
    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse]
