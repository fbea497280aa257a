"""The sources of a scrape: parts of the broker, and a snapshot of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.metrics.exposition import escaped
from lowtide.broker.metrics.recent_times import RecentRequestTimes
from lowtide.broker.metrics.record_times import ProducedTimes
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
"""The number of partitions read between two checks of the clock: half a millisecond."""


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a broker with metrics."""

    broker: BrokerContext
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    shares: SharePartitions | None
    """None if share groups are disabled."""
    host: ConnectionHost
    fetchers: ReplicaFetchers
    isr_changes: IsrChanges
    retention: Retention
    cleaner: Cleaner | None
    """None if nothing is compacted."""
    unclean_elections: Callable[[], int]
    leaders_given: Callable[[], int]
    """The number of leaderships given to other processes."""
    loop_lag: Callable[[], LoopLagSnapshot]
    read_usage: ReadUsage
    read_process: Callable[[], ProcessFigures]
    peers: PeerClients
    quotas: ClientQuotas
    filesystem: FileSystem
    metadata_file: str
    """The file of an embedded metadata store; otherwise empty."""


class PartitionRow(NamedTuple):
    """A consistent snapshot of a partition."""

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
    """Without replicas that are being added."""


class IdleShare:
    """The part of the time in which the loop's thread does not run."""

    def __init__(self) -> None:
        self._at: tuple[int, int] | None = None

    def share(self, now_ns: int, cpu_ns: int) -> float:
        """Returns the part since the last call, from 0 to 1; 1 at the first call."""
        before, self._at = self._at, (now_ns, cpu_ns)
        if before is None or now_ns <= before[0]:
            return 1.0
        return min(max(1 - (cpu_ns - before[1]) / (now_ns - before[0]), 0.0), 1.0)


class ScrapeMemory(NamedTuple):
    """The state that scrapes keep."""

    recent: RecentRequestTimes
    idle: IdleShare
    record_times: ProducedTimes
    remote_ends: RemoteEnds


class Scrape:
    """One scrape."""

    def __init__(self, sources: Sources, kept: ScrapeMemory, *, partitions: bool) -> None:
        """`partitions`: whether to write series of single partitions."""
        self.sources = sources
        self.recent, self.idle, self.record_times, self.remote_ends = kept
        self.has_partitions = partitions
        self.rows: list[PartitionRow] = []

    @property
    def led(self) -> Iterator[PartitionRow]:
        return (row for row in self.rows if row.is_leader)

    def read_partitions(self) -> Iterator[None]:
        """Reads all partitions, in steps; new ones are left to the next scrape."""
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
