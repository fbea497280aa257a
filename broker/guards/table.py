"""Which guard stands before which handler.

The others ask themselves, for who may do what decides how they go about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import (
    acls,
    administration,
    cluster,
    consumer_groups,
    groups,
    quotas,
    topics,
    transactions,
    users,
)
from lowtide.broker.guards.guard import Guard, guarded, unless_forwarded
from lowtide.broker.guards.offset_fetch import offset_fetch
from lowtide.broker.guards.producing import guarded_produce
from lowtide.broker.network.routes import HandlerSpec
from lowtide.protocol.api_keys import ApiKey

GUARDS: Final[Mapping[ApiKey, Guard]] = {
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets_to_txn,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions_to_txn,
    ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter_client_quotas,
    ApiKey.ALTER_CONFIGS: cluster.alter_configs,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: unless_forwarded(administration.alter_partition_reassignments),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter_user_scram_credentials,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.consumer_group_describe,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.consumer_group_heartbeat,
    ApiKey.CREATE_ACLS: acls.create_acls,
    ApiKey.CREATE_PARTITIONS: unless_forwarded(administration.create_partitions),
    ApiKey.CREATE_TOPICS: unless_forwarded(administration.create_topics),
    ApiKey.DELETE_ACLS: acls.delete_acls,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.DELETE_TOPICS: unless_forwarded(administration.delete_topics),
    ApiKey.DESCRIBE_ACLS: acls.describe_acls,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe_client_quotas,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_CONFIGS: cluster.describe_configs,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster.alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describe_log_dirs,
    ApiKey.DESCRIBE_PRODUCERS: topics.describe_producers,
    ApiKey.DESCRIBE_QUORUM: cluster.describe_quorum,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: topics.describe_topic_partitions,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.ELECT_LEADERS: unless_forwarded(administration.elect_leaders),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe_user_scram_credentials,
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
    ApiKey.LIST_PARTITION_REASSIGNMENTS: unless_forwarded(administration.list_partition_reassignments),
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.METADATA: topics.metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_DELETE: groups.offset_delete,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    ApiKey.PRODUCE: topics.produce,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.TXN_OFFSET_COMMIT: transactions.txn_offset_commit,
    ApiKey.UNREGISTER_BROKER: unless_forwarded(administration.unregister_broker),
    ApiKey.UPDATE_FEATURES: unless_forwarded(administration.update_features),
}

ASK_THEMSELVES: Final = frozenset(
    {
        ApiKey.AWAIT_METADATA,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_CONSUMED_OFFSETS,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELETES,
        ApiKey.DESCRIBE_HEALTH,
        ApiKey.DESCRIBE_HISTORY,
        ApiKey.DESCRIBE_RETENTION,
        ApiKey.DESCRIBE_SEGMENTS,
        ApiKey.ENVELOPE,
        ApiKey.ERASE_RECORDS,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.FETCH,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.WRITE_TXN_MARKERS,
    }
)
"""Handlers with questions of their own."""

FOR_EVERYBODY: Final = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ApiKey.PUSH_TELEMETRY,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.SASL_HANDSHAKE,
    }
)
"""What needs no permission."""


def behind_guards(specs: Iterable[HandlerSpec], broker: BrokerContext) -> list[HandlerSpec]:
    """All handlers, behind their guards; as they are where nothing is forbidden."""
    if broker.authorizer.allows_all:
        return list(specs)
    return [_behind_guard(spec, broker) for spec in specs]


def _behind_guard(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    if spec.key == ApiKey.PRODUCE:
        return guarded_produce(spec, broker)
    return guarded(spec, GUARDS[spec.key], broker) if spec.key in GUARDS else spec
