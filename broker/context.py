"""The parts of a broker that its handlers share."""

from __future__ import annotations

from typing import Any

import msgspec

from lowtide.broker.audit.audit_log import NO_AUDIT, AuditLog
from lowtide.broker.authorizer.authorizer import ALLOW_ALL, Authorizer
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.partitions.assigned_partitions import AssignedPartitions
from lowtide.broker.partitions.batch_lane import BatchLane
from lowtide.broker.partitions.deletes.delayed_delete import RecentDeletes
from lowtide.broker.partitions.fetch.fetch_session import FetchSessionCache
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.telemetry.client_instances import ClientInstances
from lowtide.broker.turns import Turns
from lowtide.metadata.session import MetadataSession
from lowtide.runtime.clock import Clock
from lowtide.runtime.random import Random
from lowtide.runtime.tasks import TaskRegistry
from lowtide.runtime.worker import Worker


class BrokerContext(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a broker that its handlers share."""

    configs: BrokerConfigs
    replicas: ReplicaManager
    assigned: AssignedPartitions
    metadata: MetadataSession
    sessions: FetchSessionCache
    clock: Clock
    random: Random
    tasks: TaskRegistry
    worker: Worker
    batch_lane: BatchLane
    """For work that decompresses large requests."""
    log: Any
    authorizer: Authorizer = ALLOW_ALL
    audit: AuditLog = NO_AUDIT
    recent_deletes: RecentDeletes = msgspec.field(default_factory=RecentDeletes)
    clients: ClientInstances = msgspec.field(default_factory=ClientInstances)

    @property
    def turns(self) -> Turns:
        """For long work of requests."""
        return self.replicas.turns

    @property
    def config(self) -> BrokerConfig:
        return self.configs.current
