"""The fetchers of a broker: one task and one connection for each leader that it follows.

A partition with a new leader or leader epoch moves to its fetcher at once; a pending answer for it is ignored.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lowtide.broker.config.key import number
from lowtide.broker.partitions.replica_fetcher import FetcherParts, ReplicaFetcher
from lowtide.broker.partitions.replication_throttle import ReplicationThrottle
from lowtide.broker.partitions.truncation_lines import TruncationLines
from lowtide.replication.fetch_plan import FETCH_VERSION, OLD_FETCH_VERSION, FetchLimits
from lowtide.replication.follower import FollowedPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.broker.config.broker_config import BrokerConfig
    from lowtide.broker.config.dynamic_config import BrokerConfigs
    from lowtide.broker.network.peer_client import PeerClients
    from lowtide.broker.partitions.replica_manager import ReplicaManager
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.session import MetadataSession
    from lowtide.protocol.types import BrokerId, TopicPartition
    from lowtide.replication.partition import Partition
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.tasks import TaskRegistry
    from lowtide.storage.log.log import Log


class ReplicaFetchers:
    """The fetchers of all leaders. `followed_partitions` assigns partitions."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        configs: BrokerConfigs,
        session: MetadataSession,
        replicas: ReplicaManager,
        peers: PeerClients,
        clock: Clock,
        tasks: TaskRegistry,
        log: Any,
    ) -> None:
        """With an older `inter.broker.protocol.version` it fetches as those versions do."""
        self._by_leader: dict[BrokerId, ReplicaFetcher] = {}
        self._leaders: dict[TopicPartition, BrokerId] = {}
        self._version = FETCH_VERSION if configs.current.reports_log_starts else OLD_FETCH_VERSION
        self._tasks = tasks
        self._log = log
        self._peers = peers
        self._closed = False
        self._ended_bytes = self._ended_failures = 0
        self.throttle = ReplicationThrottle("follower", configs, clock, session.broker_id, lambda: session.image)
        """Limits all fetchers together."""
        self._parts = FetcherParts(
            session=session,
            replicas=replicas,
            peers=peers,
            clock=clock,
            log=log,
            truncations=TruncationLines(log),
            limits=_Limits(configs).current,
            throttle=self.throttle,
            timeout_ms=lambda: number(configs.current.values["replica.socket.timeout.ms"]),
            on_settled=self.on_settled,
            on_idle=self._on_idle,
        )
        replicas.log_manager.listen_to_flushes(self._on_log_flushed)

    # ------------------------------------------------------------------ what the replica manager says
    def assign(self, partition: Partition, image: MetadataImage) -> None:
        """Follows a partition whose leader, leader epoch or leader's address is new. Another broker leads it."""
        key, leader_id = partition.topic_partition, partition.leader_id
        if self._closed:
            return
        before = self._leaders.get(key)
        if before is not None:
            known = self._by_leader[before].plan.followed[key]
            if before == leader_id and known.partition is partition and known.leader_epoch == partition.leader_epoch:
                self._by_leader[before].on_leader_changed()
                return
            self.unassign(key)
        fetcher = self._by_leader.get(leader_id)
        if fetcher is None:
            fetcher = self._by_leader[leader_id] = ReplicaFetcher(leader_id, self._parts, version=self._version)
            self._tasks.spawn(self._run(fetcher), name=f"fetcher-{leader_id}")
        self._leaders[key] = leader_id
        fetcher.add(FollowedPartition(partition=partition, leader_epoch=partition.leader_epoch))
        fetcher.on_leader_changed()

    def unassign(self, key: TopicPartition) -> None:
        """Stops following a partition. It need not be followed."""
        leader_id = self._leaders.pop(key, None)
        if leader_id is not None:
            self._by_leader[leader_id].remove(key)

    def close(self) -> None:
        """Stops following all partitions; the tasks end by themselves."""
        self._closed = True
        for key in list(self._leaders):
            self.unassign(key)

    # ------------------------------------------------------------------ what is reported of it
    def followed(self) -> Iterator[FollowedPartition]:
        """Returns all partitions that are followed, with their lag."""
        for fetcher in self._by_leader.values():
            yield from fetcher.plan.followed.values()

    def totals(self) -> tuple[int, int]:
        """Returns the fetched bytes and failed fetches since the start."""
        present = self._by_leader.values()
        return (
            self._ended_bytes + sum(fetcher.fetched_bytes for fetcher in present),
            self._ended_failures + sum(fetcher.failures for fetcher in present),
        )

    def fetchers(self) -> Iterator[ReplicaFetcher]:
        """Returns the fetchers, with their counts."""
        yield from self._by_leader.values()

    # ------------------------------------------------------------------ events
    async def _run(self, fetcher: ReplicaFetcher) -> None:
        """Runs a fetcher, also after an unexpected error: one answer must not end replication."""
        while True:
            try:
                await fetcher.run()
            except Exception as error:  # noqa: BLE001 - logged with its traceback
                self._log.error("replica fetcher failed", leader=fetcher.leader_id, exc_info=error)
                fetcher.plan.start_full_session()
                await asyncio.sleep(self._parts.limits().backoff_ms / 1000)
            else:
                return

    def _on_idle(self, fetcher: ReplicaFetcher) -> None:
        del self._by_leader[fetcher.leader_id]
        self._ended_bytes += fetcher.fetched_bytes
        self._ended_failures += fetcher.failures
        self._peers.forget(fetcher.leader_id, "fetch")

    def on_settled(self, key: TopicPartition) -> None:
        """Resumes a followed partition that no longer waits for the disk, or has another log."""
        leader_id = self._leaders.get(key)
        if leader_id is not None:
            self._by_leader[leader_id].on_disk(key)

    def _on_log_flushed(self, log: Log) -> None:
        if self._leaders:
            self.on_settled(log.topic_partition)


class _Limits:
    """The current `replica.fetch.*`, read once for each configuration."""

    def __init__(self, configs: BrokerConfigs) -> None:
        self._configs = configs
        self._made: tuple[BrokerConfig, FetchLimits] | None = None

    def current(self) -> FetchLimits:
        config = self._configs.current
        if self._made is None or self._made[0] is not config:
            values = config.values
            limits = FetchLimits(
                partition_bytes=number(values["replica.fetch.max.bytes"]),
                response_bytes=number(values["replica.fetch.response.max.bytes"]),
                minimum_bytes=number(values["replica.fetch.min.bytes"]),
                wait_ms=number(values["replica.fetch.wait.max.ms"]),
                backoff_ms=number(values["replica.fetch.backoff.ms"]),
            )
            self._made = config, limits
        return self._made[1]
