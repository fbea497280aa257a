"""Builds the partitions of a broker upward: the parts that each one needs exist before it.

Waiting, IsrChanges ── LedPartitions ── ReplicaManager ── HostedPartitions, ReplicaFetchers ── FollowedPartitions
── AssignedPartitions

None of them knows those to its right.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowtide.broker.config.key import number, value_text
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.lifecycle.broker_base import BrokerBase
from lowtide.broker.lifecycle.fencing import RegistrationFence
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.partitions.alter_partition_manager import IsrChanges
from lowtide.broker.partitions.assigned_partitions import AssignedPartitions, AssignmentRules
from lowtide.broker.partitions.followed_partitions import FollowedPartitions
from lowtide.broker.partitions.hosted_logs import OfflinePartitions
from lowtide.broker.partitions.hosted_partitions import HostedPartitions
from lowtide.broker.partitions.leader_partitions import LedPartitions
from lowtide.broker.partitions.removal_confirmations import RemovalConfirmations
from lowtide.broker.partitions.replica_fetchers import ReplicaFetchers
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.partitions.replication_health import ReplicationHealth
from lowtide.broker.partitions.replication_throttle import ReplicationThrottle
from lowtide.broker.partitions.waiting import Waiting
from lowtide.metadata.session import MetadataSession
from lowtide.storage.directory.allowance import NO_LIMIT
from lowtide.storage.directory.log_manager import LogManager

MAXIMUM_WAITING_PER_PARTITION: Final = 10_000
"""The maximum number of requests that wait for one partition; further ones are answered at once."""


class PartitionParts(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a broker, and the parts that lead, follow and monitor them."""

    replicas: ReplicaManager
    hosted: HostedPartitions
    assigned: AssignedPartitions
    peers: PeerClients
    """The connections to other brokers, for all parts."""
    fetchers: ReplicaFetchers
    isr_changes: IsrChanges
    health: ReplicationHealth
    fence: RegistrationFence | None
    """None for a broker with its own metadata store."""


def build_partitions(
    base: BrokerBase, session: MetadataSession, log_manager: LogManager, peers: PeerClients
) -> PartitionParts:
    """Builds the parts for an open session and loaded logs. `AssignedPartitions.on_image` hosts the partitions."""
    config, ports, log = base.configs.current, base.ports, base.log
    fence = RegistrationFence(session, ports.clock) if ports.shared_metadata else None
    waiting = Waiting(ports.clock, ports.loop, log, maximum_per_partition=MAXIMUM_WAITING_PER_PARTITION)
    isr_changes = IsrChanges(session, base.tasks.spawn, log)
    led = LedPartitions(
        waiting,
        isr_changes,
        ports.clock,
        ports.loop,
        lag_time_max_ms=config.replica_lag_time_max_ms,
        is_fenced=None if fence is None else fence.is_up,
    )
    replicas = ReplicaManager(
        broker_id=config.node_id,
        log_manager=log_manager,
        waiting=waiting,
        led=led,
        offline=OfflinePartitions(),
        leader_throttle=ReplicationThrottle("leader", base.configs, ports.clock, config.node_id, lambda: session.image),
        clock=ports.clock,
        loop=ports.loop,
        log=log,
        fence=fence,
    )
    hosted = HostedPartitions(replicas, log)
    fetchers = ReplicaFetchers(
        configs=base.configs,
        session=session,
        replicas=replicas,
        peers=peers,
        clock=ports.clock,
        tasks=base.tasks,
        log=log,
    )
    rules = AssignmentRules(
        log_config=lambda topic: log_config(base.configs.current, topic.configs), own_epoch=lambda: session.broker_epoch
    )
    removals = RemovalConfirmations(
        session, peers, waiting, ports.clock, base.tasks.spawn, lag_time_max_ms=config.replica_lag_time_max_ms
    )
    assigned = AssignedPartitions(
        replicas, hosted, FollowedPartitions(fetchers), removals, rules, ports.clock, ports.loop, log
    )
    session.registration.on_change(assigned.on_registration)
    log_manager.moves.limit(
        lambda: number(base.configs.current.values["replica.alter.log.dirs.io.max.bytes.per.second"])
    )
    log_manager.erasing.limit(
        lambda: float(value_text(base.configs.current.values["lowtide.erasure.io.max.bytes.per.second"])) or NO_LIMIT
    )
    log_manager.moves.listen(lambda _old, new: fetchers.on_settled(new.topic_partition))
    health = ReplicationHealth(replicas, fetchers, isr_changes, lambda: session.is_controller, log)
    return PartitionParts(
        replicas=replicas,
        hosted=hosted,
        assigned=assigned,
        peers=peers,
        fetchers=fetchers,
        isr_changes=isr_changes,
        health=health,
        fence=fence,
    )
