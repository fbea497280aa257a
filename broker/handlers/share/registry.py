"""The handlers of share groups, which are registered if `share_groups_enabled`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share_state.share_persister import SharePersister
from lowtide.broker.guards import share_groups as guards
from lowtide.broker.guards.guard import Guard, guarded
from lowtide.broker.guards.share_groups import for_brokers
from lowtide.broker.handlers.share import (
    alter_share_group_offsets,
    delete_share_group_offsets,
    delete_share_group_state,
    describe_share_group_offsets,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    write_share_group_state,
)
from lowtide.broker.handlers.share.share_access import ShareAccess
from lowtide.broker.network.features import serves_share_groups
from lowtide.broker.network.refusals import refusal_of_all
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.partitions.share.share_partitions import SharePartitions
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import SHARE_STATE_KEYS, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_share_group_offsets import (
    DescribedShareOffsetsGroup,
    DescribeShareGroupOffsetsResponse,
)
from lowtide.protocol.messages.share_group_describe import DescribedShareGroup, ShareGroupDescribeResponse

_OFF: Final = ErrorCode.UNSUPPORTED_VERSION

SHARE_GUARDS: Final[Mapping[ApiKey, Guard]] = {
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: guards.alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: guards.delete_share_group_offsets,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: guards.describe_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_STATE: for_brokers(delete_share_group_state.STATE_API.refused),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: for_brokers(initialize_share_group_state.STATE_API.refused),
    ApiKey.READ_SHARE_GROUP_STATE: for_brokers(read_share_group_state.STATE_API.refused),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: for_brokers(read_share_group_state_summary.STATE_API.refused),
    ApiKey.SHARE_ACKNOWLEDGE: guards.for_members(share_acknowledge.failed),
    ApiKey.SHARE_FETCH: guards.for_members(share_fetch.failed),
    ApiKey.SHARE_GROUP_DESCRIBE: guards.share_group_describe,
    ApiKey.SHARE_GROUP_HEARTBEAT: guards.share_group_heartbeat,
    ApiKey.WRITE_SHARE_GROUP_STATE: for_brokers(write_share_group_state.STATE_API.refused),
}


class ShareParts(NamedTuple):
    """The parts of a broker that serve share groups."""

    coordinator: ShareCoordinator
    persister: SharePersister
    partitions: SharePartitions

    @property
    def ticks(self) -> tuple[Callable[[], None], ...]:
        """Their periodic calls, once a second."""
        return self.coordinator.on_tick, self.partitions.on_tick

    def close(self) -> None:
        """Answers all waiting requests: the broker stops."""
        self.coordinator.close()
        self.partitions.close()


def share_handlers(broker: BrokerContext, groups: GroupCoordinator, parts: ShareParts) -> list[HandlerSpec]:
    """Returns the handlers over a broker's state, behind their guards if there is an authorizer."""
    coordinator, persister, partitions = parts
    offsets, access = ShareOffsets(groups, persister), ShareAccess(broker, partitions)
    specs = [
        alter_share_group_offsets.handler(broker, offsets),
        delete_share_group_offsets.handler(broker, offsets),
        describe_share_group_offsets.handler(offsets),
        delete_share_group_state.STATE_API.handler(coordinator),
        initialize_share_group_state.STATE_API.handler(coordinator),
        read_share_group_state.STATE_API.handler(coordinator),
        read_share_group_state_summary.STATE_API.handler(coordinator),
        share_acknowledge.handler(access),
        share_fetch.handler(broker, access),
        share_group_describe.handler(groups),
        share_group_heartbeat.handler(groups),
        write_share_group_state.STATE_API.handler(coordinator),
    ]
    if not broker.authorizer.allows_all:
        specs = [guarded(spec, SHARE_GUARDS[spec.key], broker) if spec.key in SHARE_GUARDS else spec for spec in specs]
    return [spec if spec.key in SHARE_STATE_KEYS else _switched(spec, broker) for spec in specs]


def _refused(key: ApiKey, request: Any, version: int) -> Any:
    """Returns UNSUPPORTED_VERSION, as Kafka does while `share.version` is 0: for each group, or as a whole."""
    if key == ApiKey.SHARE_GROUP_DESCRIBE:
        return ShareGroupDescribeResponse(
            groups=[DescribedShareGroup(error_code=_OFF, group_id=name) for name in request.group_ids]
        )
    if key == ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS:
        rows = [DescribedShareOffsetsGroup(group_id=each.group_id, error_code=_OFF) for each in request.groups]
        return DescribeShareGroupOffsetsResponse(groups=rows)
    return refusal_of_all(key, version, _OFF)


def _switched(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """Returns a handler that refuses requests while `share.version` is 0."""
    handle, handle_later = spec.handle, spec.handle_later
    if handle is not None:

        def at_once(request: Any, context: RequestContext) -> Any:
            if not serves_share_groups(broker.metadata.image):
                return _refused(spec.key, request, context.api_version)
            return handle(request, context)

        return msgspec.structs.replace(spec, handle=at_once)
    assert handle_later is not None, spec.key

    async def later(request: Any, context: RequestContext) -> Any:
        if not serves_share_groups(broker.metadata.image):
            return _refused(spec.key, request, context.api_version)
        return await handle_later(request, context)

    return msgspec.structs.replace(spec, handle_later=later)
