"""Which APIs this broker serves: the one list that ApiVersions, the version check and the documentation follow."""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.administration.forwarding import Refuse, Shows
from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.guards.table import behind_guards
from lowtide.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_consumed_offsets,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_retention,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    write_txn_markers,
)
from lowtide.broker.network.routes import HandlerSpec, VersionRange
from lowtide.broker.retention.log_retention import Retention
from lowtide.protocol.api_keys import ApiKey


def handlers(
    broker: BrokerContext,
    administrator: TopicAdministrator,
    configs: ConfigAdministrator,
    groups: GroupCoordinator,
    transactions: TransactionCoordinator,
    advertised: Mapping[ApiKey, VersionRange],
) -> list[HandlerSpec]:
    """The handlers over a broker's state; `advertised` is the dispatcher's own table."""
    partitions = PartitionAdministrator(broker)
    forwarder = administrator.forwarder

    def forwarded(spec: HandlerSpec, refuse: Refuse, shows: Shows | None = None) -> HandlerSpec:
        return spec if forwarder is None else forwarder.wrap(spec, refuse, shows)

    specs = [
        add_offsets_to_txn.handler(groups, transactions),
        add_partitions_to_txn.handler(transactions),
        alter_configs.handler(configs),
        forwarded(alter_partition_reassignments.handler(partitions), alter_partition_reassignments.refused),
        api_versions.handler(advertised),
        consumer_group_describe.handler(groups),
        consumer_group_heartbeat.handler(groups),
        forwarded(create_partitions.handler(administrator), create_partitions.refused, create_partitions.shows),
        forwarded(create_topics.handler(administrator), create_topics.refused, create_topics.shows),
        delete_groups.handler(groups),
        delete_records.handler(broker),
        forwarded(delete_topics.handler(administrator), delete_topics.refused, delete_topics.shows),
        describe_cluster.handler(broker),
        describe_configs.handler(configs),
        describe_groups.handler(groups),
        describe_log_dirs.handler(broker),
        describe_producers.handler(broker),
        describe_topic_partitions.handler(broker),
        describe_transactions.handler(transactions),
        forwarded(elect_leaders.handler(partitions), elect_leaders.refused),
        end_txn.handler(transactions),
        fetch.handler(broker),
        find_coordinator.handler(groups, transactions),
        heartbeat.handler(groups),
        incremental_alter_configs.handler(configs),
        init_producer_id.handler(broker, transactions),
        join_group.handler(groups),
        leave_group.handler(groups),
        list_config_resources.handler(configs),
        list_groups.handler(groups),
        list_offsets.handler(broker),
        forwarded(list_partition_reassignments.handler(broker), list_partition_reassignments.refused),
        list_transactions.handler(transactions),
        metadata.handler(broker, administrator),
        offset_commit.handler(groups),
        offset_delete.handler(groups),
        offset_fetch.handler(groups),
        offset_for_leader_epoch.handler(broker),
        produce.handler(broker, transactions),
        sync_group.handler(groups),
        txn_offset_commit.handler(groups, transactions),
        forwarded(unregister_broker.handler(broker), unregister_broker.refused, unregister_broker.shows),
        write_txn_markers.handler(broker, transactions.writer),
    ]
    return behind_guards(specs, broker)


def handlers_of_ours(broker: BrokerContext, groups: GroupCoordinator, retention: Retention) -> list[HandlerSpec]:
    """The handlers of requests that only Lowtide has."""
    specs = [describe_consumed_offsets.handler(broker, groups), describe_retention.handler(broker, retention)]
    return behind_guards(specs, broker)
