"""What a scrape reads: parts of the broker, and the partitions as they are at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.metrics.exposition import escaped
from lowtide.broker.metrics.recent_times import Recent
from lowtide.broker.metrics.record_times import RecordTimes
from lowtide.broker.metrics.remote_ends import RemoteEnds
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.partitions.alter_partition_manager import IsrChanges
from lowtide.broker.partitions.replica_fetchers import ReplicaFetchers
from lowtide.broker.partitions.share.share_partitions import SharePartitions
from lowtide.broker.quotas.client_quotas import ClientQuotas
from lowtide.broker.retention.cleaner import Cleaner
from lowtide.broker.retention.log_retention import Retention
from lowtide.replication.partition import Partition
from lowtide.runtime.filesystem import FileSystem
from lowtide.runtime.loop_lag import LoopLagSnapshot
from lowtide.runtime.process_figures import ProcessFigures
from lowtide.runtime.thread_usage import ReadUsage

PARTITIONS_A_STEP: Final = 200
"""Read between two looks at the clock: half a millisecond."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a broker that have numbers."""

    broker: BrokerContext
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: SharePartitions | None
    """None where share groups aren't served."""
    host: ConnectionHost
    fetchers: ReplicaFetchers
    isr_changes: IsrChanges
    retention: Retention
    cleaner: Cleaner | None
    """None where nothing is compacted."""
    unclean_elections: Callable[[], int]
    leaders_given: Callable[[], int]
    """Partitions that this broker had another one of its machine lead."""
    loop_lag: Callable[[], LoopLagSnapshot]
    read_usage: ReadUsage
    read_process: Callable[[], ProcessFigures]
    peers: PeerClients
    quotas: ClientQuotas
    filesystem: FileSystem
    metadata_file: str
    """The file of the metadata, if this broker keeps them itself; otherwise empty."""


class PartitionRow(NamedTuple):
    """A partition of this broker at the moment of the scrape. Its offsets are from one moment."""

    partition: Partition
    topic: str
    number: int
    labels: str
    """`{topic="…",partition="…"}`"""
    is_leader: bool
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    segments: int
    replicas: int
    in_sync: int
    min_in_sync: int
    is_preferred: bool
    is_under_replicated: bool
    """Replicas that are being added don't count."""


class IdleShare:
    """The part of the time in which the loop's thread does not run."""

    def __init__(self) -> None:
        self._at: tuple[int, int] | None = None

    def share(self, now_ns: int, cpu_ns: int) -> float:
        """Since the last call, from 0 to 1; 1 at the first one."""
        before, self._at = self._at, (now_ns, cpu_ns)
        if before is None or now_ns <= before[0]:
            return 1.0
        return min(max(1 - (cpu_ns - before[1]) / (now_ns - before[0]), 0.0), 1.0)


class Kept(NamedTuple):
    """What scrapes remember for those that follow."""

    recent: Recent
    idle: IdleShare
    record_times: RecordTimes
    remote_ends: RemoteEnds


class Scrape:
    """What one scrape has read, for all that follow."""

    def __init__(self, sources: Sources, kept: Kept, *, partitions: bool) -> None:
        """`partitions`: whether there are series of single partitions."""
        self.sources = sources
        self.recent, self.idle, self.record_times, self.remote_ends = kept
        self.has_partitions = partitions
        self.rows: list[PartitionRow] = []

    @property
    def led(self) -> Iterator[PartitionRow]:
        """Those that this broker leads."""
        return (row for row in self.rows if row.is_leader)

    def read_partitions(self) -> Iterator[None]:
        """Read all partitions, some at a time; those that come meanwhile are left to the next scrape."""
        rows = self.rows
        for count, partition in enumerate(list(self.sources.broker.replicas.partitions.values()), 1):
            partition.count_records()
            rows.append(_row(partition))
            if count % PARTITIONS_A_STEP == 0:
                yield
        yield


def _row(partition: Partition) -> PartitionRow:
    topic, number = partition.topic_partition
    log, leadership, replicas = partition.log, partition.leadership, partition.replicas
    in_sync = len(partition.in_sync_replicas)
    segments = log.segments
    adding = 0 if leadership is None else len(leadership.state.adding)
    return PartitionRow(
        partition,
        topic,
        number,
        f'{{topic="{escaped(topic)}",partition="{number}"}}',
        partition.is_leader,
        log.log_start_offset,
        log.high_watermark,
        log.log_end_offset,
        sum(segment.size for segment in segments),
        len(segments),
        len(replicas),
        in_sync,
        1 if leadership is None else leadership.min_insync_replicas,
        bool(replicas) and partition.leader_id == replicas[0],
        in_sync < len(replicas) - adding,
    )
