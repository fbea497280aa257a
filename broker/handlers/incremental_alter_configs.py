"""IncrementalAlterConfigs: v0-v1.

Behaviour: changes keys of topics, of this broker, of all brokers (a broker with an empty name), and of groups, which
need not exist. The response is sent when this broker applies the change; a request may also only be validated. All keys
of a resource are changed, or none. Lists support append and subtract. Deleting a key that isn't set succeeds.
Concurrent changes don't overwrite each other. Levels of this broker's loggers last until it stops (KIP-412). Client
metrics subscriptions are stored in the metadata (KIP-714).

Version notes: v1 is the first flexible version.

Errors: INVALID_REQUEST, INVALID_CONFIG, INVALID_TOPIC_EXCEPTION, UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT,
NOT_CONTROLLER, COORDINATOR_NOT_AVAILABLE, POLICY_VIOLATION if too many groups would have settings.

KIPs: 226, 339, 412, 714, 848.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.administration.config_administrator import ConfigAdministrator, change_each
from lowtide.broker.config.resources import check_keys, resource_of
from lowtide.broker.guards import cluster as guards
from lowtide.broker.guards.audited_requests import CHANGED_CONFIGS
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from lowtide.replication.config_changes import KeyChange, Operation
from lowtide.replication.refusal import Refusal

CUT: Final = Cut(
    levels=(("resources", "responses"),), names=("resource_type", "resource_name"), changes=True, sequential=True
)


def handler(administrator: ConfigAdministrator) -> HandlerSpec:
    """Returns the handler."""

    async def alter(row: AlterConfigsResource, *, validate_only: bool) -> Refusal | None:
        without_value = [
            key.name for key in row.configs if key.value is None and key.config_operation != Operation.DELETE
        ]
        refusal = check_keys([key.name for key in row.configs], without_value)
        if refusal is not None:
            return refusal
        resource = resource_of(row.resource_type, row.resource_name)
        if isinstance(resource, Refusal):
            return resource
        changes = _changes(row)
        return (
            changes
            if isinstance(changes, Refusal)
            else await administrator.alter(resource, changes, validate_only=validate_only)
        )

    async def handle(
        request: IncrementalAlterConfigsRequest, _context: RequestContext
    ) -> IncrementalAlterConfigsResponse:
        rows = await change_each(
            request.resources,
            lambda row: alter(row, validate_only=request.validate_only),
            administrator.lane,
            AlterConfigsResourceResponse,
        )
        return IncrementalAlterConfigsResponse(responses=rows)

    return HandlerSpec(
        key=ApiKey.INCREMENTAL_ALTER_CONFIGS,
        guard=guards.incremental_alter_configs,
        handle_later=handle,
        cut=CUT,
        audit=CHANGED_CONFIGS,
    )


def _changes(row: AlterConfigsResource) -> list[KeyChange] | Refusal:
    """Returns the changes of a row.

    Refusals: INVALID_REQUEST for an unknown operation. Kafka then fails, unless the row is about a broker.
    """
    unknown = [
        key.config_operation for key in row.configs if key.config_operation not in Operation.__members__.values()
    ]
    if unknown:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {unknown[0]}")
    return [KeyChange(key.name, Operation(key.config_operation), key.value) for key in row.configs]
