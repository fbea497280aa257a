"""`AdminClient`: the administration of a cluster, as methods."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Self

from lowtide.admin import (
    acls,
    cluster_description,
    configs,
    delegation_tokens,
    erasing,
    finding,
    group_offsets,
    groups,
    log_dirs,
    observation,
    offsets,
    producing,
    quotas,
    records,
    replicas,
    share_groups,
    standing,
    topics,
    transactions,
    users,
)
from lowtide.admin import delete_records as deletes
from lowtide.admin.brokers import ClientPorts
from lowtide.admin.call import AdminClientBase
from lowtide.admin.cluster import ClusterConnections
from lowtide.admin.settings import ClientSettings
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.random import system_random

_LOG = logging.getLogger("lowtide.admin")


class AdminClient(AdminClientBase):
    """Administers a cluster of Lowtide or Apache Kafka over the network.

        async with AdminClient("localhost:9092") as admin:
            results = await admin.delete_records({TopicPartition("flights", 0): Timestamp.of(yesterday)})

    It connects to brokers when a call needs them, and keeps the connections. Calls may run concurrently on one event
    loop; a client belongs to the loop that first used it. `BlockingAdminClient` has the same methods without `await`.

    **Times and retries.** `timeout`, in seconds, limits a call with its connections, lookups, attempts and pauses. The
    default is `default.api.timeout.ms`, one minute. Errors that Kafka calls retriable are retried until then.

    **Errors.** A call about several partitions, topics or groups returns a result for each of them: a value or an
    `AdminError`. Errors of the whole call are raised: `AuthenticationFailedError`, `DeadlineExceededError` if no broker
    was reached, `UnsupportedVersionError`, `BrokerAnsweredError`, and ValueError for invalid arguments.

    The methods are functions of the modules beside this one, where their docstrings are.
    """

    def __init__(
        self,
        bootstrap_servers: str | Iterable[str] | Mapping[str, object] | ClientSettings,
        ports: ClientPorts | None = None,
    ) -> None:
        """Takes bootstrap servers, or properties with the names of Kafka's clients, or settings. Errors: SettingsError.

        `ports` is for tests.
        """
        settings = (
            bootstrap_servers
            if isinstance(bootstrap_servers, Mapping | ClientSettings)
            else {"bootstrap.servers": bootstrap_servers}
        )
        self.settings = settings if isinstance(settings, ClientSettings) else ClientSettings.of(settings)
        super().__init__(ClusterConnections(self.settings, ports or ClientPorts(SystemClock(), system_random())))
        if self.settings.unused_keys:
            _LOG.warning("this client does not use these settings: %s", ", ".join(self.settings.unused_keys))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections. Calls in progress fail."""
        await self.cluster.close()

    # records
    delete_records = deletes.delete_records
    resolve_delete_targets = deletes.resolve_delete_targets
    list_offsets = offsets.list_offsets
    fetch_records = records.fetch_records
    find_records = finding.find_records
    produce_records = producing.produce_records
    erase_records = erasing.erase_records
    describe_standing_erasures = standing.describe_standing_erasures
    end_standing_erasure = standing.end_standing_erasure

    # topics
    create_topics = topics.create_topics
    delete_topics = topics.delete_topics
    create_partitions = topics.create_partitions
    list_topics = topics.list_topics
    describe_topics = topics.describe_topics

    # configurations and quotas
    describe_configs = configs.describe_configs
    alter_configs = configs.alter_configs
    describe_quotas = quotas.describe_quotas
    alter_quotas = quotas.alter_quotas

    # the cluster
    describe_cluster = cluster_description.describe_cluster
    describe_features = cluster_description.describe_features
    describe_log_dirs = log_dirs.describe_log_dirs
    alter_replica_log_dirs = log_dirs.alter_replica_log_dirs
    elect_leaders = replicas.elect_leaders
    alter_reassignments = replicas.alter_reassignments
    list_reassignments = replicas.list_reassignments
    unregister_broker = replicas.unregister_broker

    # what only Lowtide's brokers answer
    describe_deletes = observation.describe_deletes
    describe_segments = observation.describe_segments
    describe_history = observation.describe_history
    describe_health = observation.describe_health

    # access control, users and tokens
    describe_acls = acls.describe_acls
    create_acls = acls.create_acls
    delete_acls = acls.delete_acls
    describe_scram_users = users.describe_scram_users
    alter_scram_users = users.alter_scram_users
    create_delegation_token = delegation_tokens.create_delegation_token
    renew_delegation_token = delegation_tokens.renew_delegation_token
    expire_delegation_token = delegation_tokens.expire_delegation_token
    describe_delegation_tokens = delegation_tokens.describe_delegation_tokens

    # groups
    list_groups = groups.list_groups
    describe_groups = groups.describe_groups
    delete_groups = groups.delete_groups
    list_group_offsets = group_offsets.list_group_offsets
    alter_group_offsets = group_offsets.alter_group_offsets
    delete_group_offsets = group_offsets.delete_group_offsets
    list_share_group_offsets = share_groups.list_share_group_offsets
    alter_share_group_offsets = share_groups.alter_share_group_offsets

    # transactions
    list_transactions = transactions.list_transactions
    describe_transactions = transactions.describe_transactions
    describe_producers = transactions.describe_producers
