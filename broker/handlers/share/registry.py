"""The handlers of share groups, which are registered where `share_groups_enabled`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.groups.share_offsets import ShareOffsets
from lowtide.broker.coordinator.share.share_coordinator import ShareCoordinator
from lowtide.broker.coordinator.share.share_persister import SharePersister
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
    share_group_describe,
    share_group_heartbeat,
    write_share_group_state,
)
from lowtide.broker.network.routes import HandlerSpec
from lowtide.protocol.api_keys import ApiKey

SHARE_GUARDS: Final[Mapping[ApiKey, Guard]] = {
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: guards.alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: guards.delete_share_group_offsets,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: guards.describe_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_STATE: for_brokers(delete_share_group_state.refused),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: for_brokers(initialize_share_group_state.refused),
    ApiKey.READ_SHARE_GROUP_STATE: for_brokers(read_share_group_state.refused),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: for_brokers(read_share_group_state_summary.refused),
    ApiKey.SHARE_GROUP_DESCRIBE: guards.share_group_describe,
    ApiKey.SHARE_GROUP_HEARTBEAT: guards.share_group_heartbeat,
    ApiKey.WRITE_SHARE_GROUP_STATE: for_brokers(write_share_group_state.refused),
}


def share_handlers(
    broker: BrokerContext, groups: GroupCoordinator, coordinator: ShareCoordinator, persister: SharePersister
) -> list[HandlerSpec]:
    """The handlers over a broker's state, behind their guards; as they are where nothing is forbidden."""
    offsets = ShareOffsets(groups, persister)
    specs = [
        alter_share_group_offsets.handler(broker, offsets),
        delete_share_group_offsets.handler(broker, offsets),
        describe_share_group_offsets.handler(offsets),
        delete_share_group_state.handler(coordinator),
        initialize_share_group_state.handler(coordinator),
        read_share_group_state.handler(coordinator),
        read_share_group_state_summary.handler(coordinator),
        share_group_describe.handler(groups),
        share_group_heartbeat.handler(groups),
        write_share_group_state.handler(coordinator),
    ]
    if broker.authorizer.allows_all:
        return specs
    return [guarded(spec, SHARE_GUARDS[spec.key], broker) if spec.key in SHARE_GUARDS else spec for spec in specs]
