"""Which APIs this broker serves: the one list that ApiVersions, the version check and the documentation follow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lowtide.broker.administration.acl_administrator import AclAdministrator
from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.administration.delegation_token_administrator import TokenAdministrator
from lowtide.broker.administration.forwarding import Refuse, Shows
from lowtide.broker.administration.partition_administrator import PartitionAdministrator
from lowtide.broker.administration.spread import Spread
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.guards.audited_requests import audited
from lowtide.broker.guards.table import behind_guards
from lowtide.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    api_versions,
    await_metadata,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_consumed_offsets,
    describe_delegation_token,
    describe_deletes,
    describe_groups,
    describe_health,
    describe_history,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_retention,
    describe_segments,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    erase_records,
    expire_delegation_token,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
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
    push_telemetry,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    write_txn_markers,
)
from lowtide.broker.handlers.share.registry import ShareParts
from lowtide.broker.network.routes import HandlerSpec, Route, VersionRange
from lowtide.broker.observation.health import Observed
from lowtide.broker.retention.explained import Explanations
from lowtide.broker.retention.log_retention import Retention
from lowtide.protocol.api_keys import ApiKey


class Coordinators(NamedTuple):
    """The coordinators of a broker, and what else serves share groups; None where these aren't served."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: ShareParts | None = None


def handlers(
    broker: BrokerContext,
    administrator: TopicAdministrator,
    configs: ConfigAdministrator,
    coordinators: Coordinators,
    advertised: Mapping[ApiKey, VersionRange],
) -> list[HandlerSpec]:
    """The handlers over a broker's state; `advertised` is the dispatcher's own table."""
    groups, transactions, shares = coordinators
    partitions = PartitionAdministrator(broker)
    forwarder = administrator.forwarder
    spread = Spread(broker, None if forwarder is None else forwarder.peers)

    def forwarded(spec: HandlerSpec, refuse: Refuse, shows: Shows | None = None) -> HandlerSpec:
        return spec if forwarder is None else forwarder.wrap(spec, refuse, shows)

    specs = [
        add_offsets_to_txn.handler(groups, transactions),
        add_partitions_to_txn.handler(transactions),
        alter_client_quotas.handler(broker, spread),
        alter_configs.handler(configs),
        forwarded(alter_partition_reassignments.handler(partitions), alter_partition_reassignments.refused),
        alter_user_scram_credentials.handler(broker, spread),
        api_versions.handler(advertised, lambda: broker.metadata.image),
        consumer_group_describe.handler(groups),
        consumer_group_heartbeat.handler(groups),
        forwarded(create_partitions.handler(administrator), create_partitions.refused, create_partitions.shows),
        forwarded(create_topics.handler(administrator), create_topics.refused, create_topics.shows),
        *cluster_and_brokers(broker, spread),
        delete_groups.handler(groups),
        delete_records.handler(broker),
        forwarded(delete_topics.handler(administrator), delete_topics.refused, delete_topics.shows),
        describe_client_quotas.handler(broker),
        describe_configs.handler(configs),
        describe_groups.handler(groups),
        describe_producers.handler(broker),
        describe_topic_partitions.handler(broker),
        describe_transactions.handler(transactions),
        describe_user_scram_credentials.handler(broker),
        forwarded(elect_leaders.handler(partitions), elect_leaders.refused),
        end_txn.handler(transactions),
        fetch.handler(broker),
        find_coordinator.handler(groups, transactions, None if shares is None else shares.coordinator.topic),
        get_telemetry_subscriptions.handler(broker),
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
        push_telemetry.handler(broker),
        *logins(),
        *rules_and_tokens(AclAdministrator(broker, spread), TokenAdministrator(broker, spread)),
        sync_group.handler(groups),
        txn_offset_commit.handler(groups, transactions),
        forwarded(unregister_broker.handler(broker), unregister_broker.refused, unregister_broker.shows),
        forwarded(update_features.handler(broker, advertised), update_features.refused, update_features.shows),
        write_txn_markers.handler(broker, transactions.writer),
    ]
    return audited(behind_guards(specs, broker), broker)


def cluster_and_brokers(broker: BrokerContext, spread: Spread) -> list[HandlerSpec]:
    """What describes the cluster and its brokers as a whole, and moves logs between a broker's directories."""
    return [
        alter_replica_log_dirs.handler(broker),
        describe_cluster.handler(broker),
        describe_log_dirs.handler(broker),
        describe_quorum.handler(broker, spread),
    ]


def logins() -> list[HandlerSpec]:
    """What answers requests of a login where none is due."""
    return [sasl_authenticate.handler(), sasl_handshake.handler()]


def rules_and_tokens(acls: AclAdministrator, tokens: TokenAdministrator) -> list[HandlerSpec]:
    """What changes and shows rules of access control, and delegation tokens."""
    return [
        create_acls.handler(acls),
        create_delegation_token.handler(tokens),
        delete_acls.handler(acls),
        describe_acls.handler(acls),
        describe_delegation_token.handler(tokens),
        expire_delegation_token.handler(tokens),
        renew_delegation_token.handler(tokens),
    ]


def handlers_of_ours(
    broker: BrokerContext,
    groups: GroupCoordinator,
    retention: Retention,
    observed: Observed,
    routes: Mapping[tuple[int, int], Route | None],
) -> list[HandlerSpec]:
    """The handlers of requests that only Lowtide has, and of those that brokers pass on.

    `routes`: of the dispatcher.
    """
    explanations = Explanations(broker, retention)
    specs = [
        await_metadata.handler(broker),
        describe_consumed_offsets.handler(broker, groups),
        describe_deletes.handler(broker),
        describe_health.handler(broker, observed.vitals),
        describe_history.handler(broker, observed.history),
        describe_retention.handler(broker, explanations),
        describe_segments.handler(broker, explanations),
        envelope.handler(broker, routes),
        erase_records.handler(broker),
    ]
    return audited(behind_guards(specs, broker), broker)
