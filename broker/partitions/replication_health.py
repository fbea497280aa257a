"""The state of replication on this broker: for metrics, and once a minute in the log if it is unhealthy.

It is counted on demand, at no cost to requests. The names follow Kafka's metrics (`UnderReplicatedPartitions`,
`OfflinePartitionsCount`, `IsrShrinksPerSec`, `MaxLag`, `PurgatorySize`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowtide.broker.partitions.alter_partition_manager import IsrChanges
    from lowtide.broker.partitions.replica_fetchers import ReplicaFetchers
    from lowtide.broker.partitions.replica_manager import ReplicaManager

REPORT_INTERVAL_MS: Final = 60_000


class ReplicationSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state at one moment. Fields with `_total` count since the start."""

    partitions: int = 0
    """Hosted partitions."""
    led_partitions: int = 0
    under_replicated_partitions: int = 0
    """Led partitions with fewer in-sync replicas than replicas, without those being added."""
    under_min_isr_partitions: int = 0
    """Led partitions with fewer in-sync replicas than `min.insync.replicas`: acks=all is refused."""
    offline_replicas: int = 0
    """Replicas that this broker can't serve: their log directory failed, or their log could not be loaded."""
    offline_partitions: int | None = None
    """Partitions of the cluster without a leader, which only the controller counts; None elsewhere."""
    isr_shrinks_total: int = 0
    isr_expands_total: int = 0
    isr_failures_total: int = 0
    """ISR changes that the metadata store refused."""
    followed_partitions: int = 0
    lagging_partitions: int = 0
    """Followed partitions that lack a committed record, or have no response yet."""
    lag_max: int = 0
    """The most records that a followed partition lacks, as of its leader's last answer."""
    fetched_bytes_total: int = 0
    fetch_failures_total: int = 0
    throttled_sent_bytes_total: int = 0
    throttled_fetched_bytes_total: int = 0
    parked_deletes: int = 0
    """Deletes that wait for followers."""
    parked_produces: int = 0
    """Produce requests and coordinators' writes that wait for the high watermark."""

    @property
    def is_well(self) -> bool:
        """Whether no operator is needed. A lag alone is fine while all replicas are in sync."""
        return not (
            self.under_replicated_partitions
            or self.under_min_isr_partitions
            or self.offline_replicas
            or self.offline_partitions
        )


class ReplicationHealth:
    """Counts the state of replication, and reports it."""

    def __init__(
        self,
        replicas: ReplicaManager,
        fetchers: ReplicaFetchers,
        isr_changes: IsrChanges,
        is_controller: Callable[[], bool],
        log: Any,
    ) -> None:
        """`is_controller()` returns whether this broker is the controller now."""
        self._replicas = replicas
        self._fetchers = fetchers
        self._isr_changes = isr_changes
        self._is_controller = is_controller
        self._log = log
        self._report_ms: int | None = None
        self._told = ReplicationSnapshot()

    def snapshot(self) -> ReplicationSnapshot:
        """Returns the current state."""
        replicas, changes = self._replicas, self._isr_changes
        led = [partition for partition in replicas.partitions.values() if partition.is_leader]
        states = [partition.leadership.state for partition in led if partition.leadership is not None]
        followed = list(self._fetchers.followed())
        fetched_bytes, failures = self._fetchers.totals()
        return ReplicationSnapshot(
            partitions=len(replicas.partitions),
            led_partitions=len(led),
            under_replicated_partitions=sum(
                len(state.isr) < len(state.replicas) - len(state.adding) for state in states
            ),
            under_min_isr_partitions=sum(not partition.has_enough_in_sync for partition in led),
            offline_replicas=len(replicas.offline.keys),
            offline_partitions=self._leaderless() if self._is_controller() else None,
            isr_shrinks_total=changes.shrinks,
            isr_expands_total=changes.expands,
            isr_failures_total=changes.failures,
            followed_partitions=len(followed),
            lagging_partitions=sum(not each.is_in_sync for each in followed),
            lag_max=max((each.lag for each in followed), default=0),
            fetched_bytes_total=fetched_bytes,
            fetch_failures_total=failures,
            throttled_sent_bytes_total=replicas.leader_throttle.quota.total_bytes,
            throttled_fetched_bytes_total=self._fetchers.throttle.quota.total_bytes,
            parked_deletes=len(replicas.waiting.deletes),
            parked_produces=len(replicas.waiting.commits),
        )

    def _leaderless(self) -> int:
        image = self._replicas.image
        if image is None:
            return 0
        return sum(not state.has_leader for topic in image.topics.values() for state in topic.partitions)

    def on_tick(self, now_ms: int) -> None:
        """Logs the state once a minute if it is unhealthy. Call it about once a second, with the monotonic time."""
        if self._report_ms is None:
            self._report_ms = now_ms + REPORT_INTERVAL_MS
        if now_ms < self._report_ms:
            return
        self._report_ms = now_ms + REPORT_INTERVAL_MS
        now, before = self.snapshot(), self._told
        self._told = now
        if now.is_well:
            return
        self._log.warning(
            "replication is not well",
            under_replicated_partitions=now.under_replicated_partitions,
            under_min_isr_partitions=now.under_min_isr_partitions,
            offline_replicas=now.offline_replicas,
            offline_partitions=now.offline_partitions,
            led_partitions=now.led_partitions,
            isr_shrinks=now.isr_shrinks_total - before.isr_shrinks_total,
            isr_expands=now.isr_expands_total - before.isr_expands_total,
            isr_failures=now.isr_failures_total - before.isr_failures_total,
            lagging_partitions=now.lagging_partitions,
            lag_max=now.lag_max,
            fetch_failures=now.fetch_failures_total - before.fetch_failures_total,
            parked_deletes=now.parked_deletes,
        )
