"""The handlers of share groups, which are registered where `share_groups_enabled`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

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
from lowtide.broker.handlers.share.switched import switched
from lowtide.broker.network.routes import HandlerSpec
from lowtide.broker.partitions.share.share_partitions import SharePartitions
from lowtide.protocol.api_keys import SHARE_STATE_KEYS, ApiKey

SHARE_GUARDS: Final[Mapping[ApiKey, Guard]] = {
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: guards.alter_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: guards.delete_share_group_offsets,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: guards.describe_share_group_offsets,
    ApiKey.DELETE_SHARE_GROUP_STATE: for_brokers(delete_share_group_state.refused),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: for_brokers(initialize_share_group_state.refused),
    ApiKey.READ_SHARE_GROUP_STATE: for_brokers(read_share_group_state.refused),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: for_brokers(read_share_group_state_summary.refused),
    ApiKey.SHARE_ACKNOWLEDGE: guards.for_members(share_acknowledge.failed),
    ApiKey.SHARE_FETCH: guards.for_members(share_fetch.failed),
    ApiKey.SHARE_GROUP_DESCRIBE: guards.share_group_describe,
    ApiKey.SHARE_GROUP_HEARTBEAT: guards.share_group_heartbeat,
    ApiKey.WRITE_SHARE_GROUP_STATE: for_brokers(write_share_group_state.refused),
}


class ShareParts(NamedTuple):
    """What of a broker serves share groups."""

    coordinator: ShareCoordinator
    persister: SharePersister
    partitions: SharePartitions

    @property
    def ticks(self) -> tuple[Callable[[], None], ...]:
        """What they have to do once a second."""
        return self.coordinator.on_tick, self.partitions.on_tick

    def close(self) -> None:
        """The broker stops: answer all that waits."""
        self.coordinator.close()
        self.partitions.close()


def share_handlers(broker: BrokerContext, groups: GroupCoordinator, parts: ShareParts) -> list[HandlerSpec]:
    """The handlers over a broker's state, behind their guards; as they are where nothing is forbidden."""
    coordinator, persister, partitions = parts
    offsets, access = ShareOffsets(groups, persister), ShareAccess(broker, partitions)
    specs = [
        alter_share_group_offsets.handler(broker, offsets),
        delete_share_group_offsets.handler(broker, offsets),
        describe_share_group_offsets.handler(offsets),
        delete_share_group_state.handler(coordinator),
        initialize_share_group_state.handler(coordinator),
        read_share_group_state.handler(coordinator),
        read_share_group_state_summary.handler(coordinator),
        share_acknowledge.handler(access),
        share_fetch.handler(broker, access),
        share_group_describe.handler(groups),
        share_group_heartbeat.handler(groups),
        write_share_group_state.handler(coordinator),
    ]
    if not broker.authorizer.allows_all:
        specs = [guarded(spec, SHARE_GUARDS[spec.key], broker) if spec.key in SHARE_GUARDS else spec for spec in specs]
    return [spec if spec.key in SHARE_STATE_KEYS else switched(spec, broker) for spec in specs]
