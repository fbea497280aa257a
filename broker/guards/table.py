"""Which guard stands before which handler. The others ask themselves, for who may do what decides how they go about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster, consumer_groups, groups, topics, transactions
from lowtide.broker.guards.guard import Guard, guarded
from lowtide.broker.guards.offset_fetch import offset_fetch
from lowtide.broker.network.routes import HandlerSpec
from lowtide.protocol.api_keys import ApiKey

GUARDS: Final[Mapping[ApiKey, Guard]] = {
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ALTER_CONFIGS: cluster.alter_configs,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.consumer_group_describe,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.consumer_group_heartbeat,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_CONFIGS: cluster.describe_configs,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.DESCRIBE_PRODUCERS: topics.describe_producers,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.END_TXN: transactions.end_txn,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: cluster.incremental_alter_configs,
    ApiKey.INIT_PRODUCER_ID: cluster.init_producer_id,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.LIST_CONFIG_RESOURCES: cluster.list_config_resources,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.LIST_OFFSETS: topics.list_offsets,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.METADATA: topics.metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_DELETE: groups.offset_delete,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    ApiKey.PRODUCE: topics.produce,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
}

ASK_THEMSELVES: Final = frozenset(
    {
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DESCRIBE_CONSUMED_OFFSETS,
        ApiKey.DESCRIBE_RETENTION,
        ApiKey.ELECT_LEADERS,
        ApiKey.FETCH,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.WRITE_TXN_MARKERS,
    }
)
"""Handlers with questions of their own."""

FOR_EVERYBODY: Final = frozenset({ApiKey.API_VERSIONS})
"""What needs no permission."""


def behind_guards(specs: Iterable[HandlerSpec], broker: BrokerContext) -> list[HandlerSpec]:
    """All handlers, behind their guards; as they are where nothing is forbidden."""
    if broker.authorizer.allows_all:
        return list(specs)
    return [guarded(spec, GUARDS[spec.key], broker) if spec.key in GUARDS else spec for spec in specs]
