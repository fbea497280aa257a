"""A broker's life: what is started in which order, and stopped in the reverse one.

Start: metadata store → cluster id → log directories (recovery) → port bound → registration → image → logs as the image says → requests
are answered. Stop: no new connections, owed answers go out, the registration ends, logs are flushed and marked clean.

Nothing here is global: several brokers may live in one process, on real ports or on simulated ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.administration.forwarding import Forwarder
from lowtide.broker.administration.partition_administrator import controller_settings
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.descriptors import share_out
from lowtide.broker.handlers.registry import handlers, handlers_of_ours
from lowtide.broker.lifecycle.adoption import Adoption, adopt_topics, adoption_due, finish_adoption, kafka_configs
from lowtide.broker.lifecycle.broker_registration import hand_over, make_session, registration_of, warn_without_raft_log
from lowtide.broker.lifecycle.disk_space import DiskSpace
from lowtide.broker.lifecycle.due_work import DueWork
from lowtide.broker.lifecycle.fencing import Fence
from lowtide.broker.lifecycle.image_lines import ImageLines
from lowtide.broker.lifecycle.log_directories import check_directories, check_metadata_directory, make_log_manager
from lowtide.broker.lifecycle.loop_health import LoopHealth
from lowtide.broker.lifecycle.memory_upkeep import MemoryUpkeep
from lowtide.broker.lifecycle.metadata_copies import MetadataCopies, read_copies
from lowtide.broker.lifecycle.ports import Ports
from lowtide.broker.lifecycle.recovery_lines import tell_recoveries
from lowtide.broker.lifecycle.registered_directories import BrokerDirectories, replicas_of
from lowtide.broker.lifecycle.unclean_elections import tell_unclean_elections
from lowtide.broker.network.admission import connection_limits
from lowtide.broker.network.connection_host import ConnectionHost
from lowtide.broker.network.dispatcher import Dispatcher
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.network.server import Server, open_listeners
from lowtide.broker.partitions.alter_partition_manager import IsrChanges
from lowtide.broker.partitions.batch_lane import BatchLane
from lowtide.broker.partitions.fetch_session import FetchSessionCache
from lowtide.broker.partitions.replica_fetchers import ReplicaFetchers
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.partitions.replication_health import ReplicationHealth
from lowtide.broker.partitions.replication_throttle import ReplicationThrottle
from lowtide.broker.partitions.strays import settle_strays
from lowtide.broker.retention.cleaner import Cleaner
from lowtide.broker.retention.consumption import Consumption
from lowtide.broker.retention.deletion_ledger import DeletionLedger
from lowtide.broker.retention.log_retention import Retention
from lowtide.broker.turns import Turns
from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.embedded import METADATA_FILE
from lowtide.metadata.errors import InconsistentClusterError, OldBrokerError, OtherClusterError, SessionError
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.metadata_copy import MetadataCopy
from lowtide.metadata.records import Listener, MetadataCorruptError
from lowtide.metadata.session import MetadataSession
from lowtide.metadata.store import MetadataStoreError, OwnedStore
from lowtide.replication.controller import ControllerWork
from lowtide.runtime.tasks import TaskRegistry
from lowtide.storage.directory.log_manager import KnownTopic, LogManager
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log
from lowtide.storage.log.segment_ages import SegmentAges

__all__ = ["START_ERRORS", "Broker", "Ports"]

MAXIMUM_WAITING_PER_PARTITION = 10_000
"""Requests that may wait for one partition; further ones are answered at once with what there is."""

STOP_GRACE_S = 5.0
"""How long owed answers may take at a stop."""

START_ERRORS = (StorageError, SessionError, MetadataStoreError, MetadataCorruptError, OSError)
"""What keeps a broker from starting through no fault of ours: each says in a sentence what it is about."""


def _ignore() -> None:
    """Stands for a listener that does nothing."""


class Broker:
    """One broker. `start` once, then `stop` once."""

    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        log: Any,
        *,
        on_failed: Callable[[], None] = _ignore,
        on_partition_made: Callable[[], None] = _ignore,
    ) -> None:
        """`on_failed` is called when the broker cannot go on: all its log directories are offline.

        `on_partition_made` is called for each partition that comes to stay in memory.
        """
        self.config = config
        self.log = log
        self.ports: dict[str, int] = {}
        """Where it listens, by listener names, once it does."""
        self.failed = False
        self._on_failed = on_failed
        self._on_partition_made = on_partition_made
        self._ports = ports
        self._tasks = TaskRegistry(self._on_task_failed)
        self._store: OwnedStore | None = None
        self._image_lines = ImageLines(config.node_id, self.log)
        self._log_manager: LogManager | None = None
        self._session: MetadataSession | None = None
        self._copies: MetadataCopies | None = None
        self._server: Server | None = None
        self._host: ConnectionHost | None = None
        self._fence: Fence | None = None
        self._groups: GroupCoordinator | None = None
        self._transactions: TransactionCoordinator | None = None
        self._configs = BrokerConfigs(config)
        self._descriptors = share_out(ports.open_files)
        self._controller_work = ControllerWork(config.node_id, lambda: controller_settings(self._configs.current))
        self._peers = PeerClients(ports.clock, self._tasks, log, client_id=f"broker-{config.node_id}")
        self.fetchers: ReplicaFetchers | None = None
        self._due_work: DueWork | None = None
        self._hurries = asyncio.Event()
        self.loop_health: LoopHealth | None = None
        self.replication_health: ReplicationHealth | None = None
        self.replicas: ReplicaManager | None = None
        self.retention: Retention | None = None
        self.cleaner: Cleaner | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        entry = self.config.advertised_listeners[0]
        return entry._replace(port=entry.port or self.ports.get(entry.name, 0)).address

    @property
    def port(self) -> int:
        """That of its first listener, once it listens."""
        return self.ports[self.config.listeners[0].name]

    @property
    def log_manager(self) -> LogManager:
        """The logs of this broker, for tests and tools."""
        assert self._log_manager is not None, "the broker has not begun to start"
        return self._log_manager

    async def start(self) -> None:
        """Start, and return when clients are served.

        Errors: StorageError, SessionError, MetadataStoreError, OSError (the port): each says what to do about it. What was started is
        stopped again.
        """
        try:
            await self._start()
        except START_ERRORS:
            # Logs that were opened are as good as before: what refuses the start must not cost a recovery.
            await self._abandon(clean=self._log_manager is not None and self._log_manager.is_open)
            raise
        except BaseException:
            await self._abandon()
            raise

    async def _start(self) -> None:
        config, ports = self.config, self._ports
        if not ports.shared_metadata:
            check_metadata_directory(ports.filesystem, config.log_dirs[0])
        self._store = await ports.open_store(config.log_dirs[0])
        place = ports.shared_metadata or f"{config.log_dirs[0]}/{METADATA_FILE}"
        adopts = await adoption_due(self._store, ports.filesystem, config.log_dirs, place, ports.metadata_prefix)
        self._session = make_session(config, ports, self._store, self._tasks, self._controller_work.plan)
        self._log_manager = make_log_manager(config, ports, self._descriptors)
        try:
            remembered = {} if adopts is not Adoption.NONE else read_copies(ports.filesystem, self._log_manager.paths, self.log)
            cluster_id = await self._session.open(self._log_manager.known_cluster_id(), remembered)
        except OtherClusterError as error:
            raise StorageError(", ".join(config.log_dirs), f"{error} (meta.properties)") from error
        await warn_without_raft_log(self._store, ports.shared_metadata, self.log)
        self._log_manager.on_directory_failed = self._on_directory_failed
        self._follow_configs(self._session.image)
        now = self._configs.current
        topics = {name: KnownTopic(topic.topic_id, log_config(now, topic.configs)) for name, topic in self._session.image.topics.items()}
        began_ms = ports.clock.monotonic_ms()
        self._log_manager.open(
            cluster_id,
            config.node_id,
            required=None if ports.shared_metadata else config.log_dirs[0],
            topics=topics,
            deleted_topics=self._session.image.deleted_topics,
        )
        tell_recoveries(self._log_manager, ports.clock.monotonic_ms() - began_ms, self.log)
        self._session.keep(self._keep_copies)
        for path in self._log_manager.strays:
            self.log.warning("folder is not a partition of this broker, it is left alone", path=path)
        await self._serve(self._session, self._log_manager, adopts)

    def _connection_host(self, dispatcher: Dispatcher, config: BrokerConfig, turns: Turns) -> ConnectionHost:
        return ConnectionHost(
            dispatcher=dispatcher,
            clock=self._ports.clock,
            worker=self._ports.worker,
            log=self.log,
            maximum_frame_bytes=config.socket_request_max_bytes,
            request_memory_bytes=config.queued_max_request_bytes,
            answer_memory_bytes=config.answers_unread_max_bytes,
            limits=connection_limits(config, self._descriptors),
            request_rows_max=config.request_rows_max,
            turns=turns,
        )

    def _keep_copies(self, copy: MetadataCopy) -> MetadataCopies:
        """Have the log directories remember the metadata, from here on."""
        assert self._log_manager is not None
        self._copies = MetadataCopies(self._ports.filesystem, self._ports.worker, self._log_manager, copy)
        self._copies.begin()
        return self._copies

    async def _serve(self, session: MetadataSession, log_manager: LogManager, adopts: Adoption) -> None:
        config, ports = self._configs.current, self._ports
        self.replicas = ReplicaManager(
            broker_id=config.node_id,
            log_manager=log_manager,
            clock=ports.clock,
            loop=ports.loop,
            log=self.log,
            log_config=lambda topic: log_config(self._configs.current, topic.configs),
            maximum_waiting_per_partition=MAXIMUM_WAITING_PER_PARTITION,
            lag_time_max_ms=config.replica_lag_time_max_ms,
            on_partition_made=self._on_partition_made,
        )
        self.replicas.producer_id_expiration_ms = config.producer_id_expiration_ms
        self._replicate(session, self.replicas)
        if ports.shared_metadata:
            self._fence = Fence(session, ports.clock)
            self.replicas.fence_with(self._fence.is_up, self._fence)
        context = BrokerContext(
            configs=self._configs,
            replicas=self.replicas,
            metadata=session,
            sessions=FetchSessionCache(config.max_incremental_fetch_session_cache_slots, ports.random),
            clock=ports.clock,
            random=ports.random,
            tasks=self._tasks,
            worker=ports.worker,
            batch_lane=BatchLane(ports.worker),
            log=self.log,
        )
        administrator, is_alone = TopicAdministrator(context, Forwarder(session, self._peers)), self._fence is None
        groups = self._groups = GroupCoordinator(context, administrator, ports.loop, is_alone=is_alone)
        dispatcher = Dispatcher(spawn=self._tasks.spawn, maximum_versions=config.max_versions)
        loop, peers = ports.loop, self._peers
        transactions = self._transactions = TransactionCoordinator(context, administrator, peers, groups, loop, is_alone=is_alone)
        dispatcher.register(handlers(context, administrator, ConfigAdministrator(context), groups, transactions, dispatcher.advertised))
        consumption = Consumption(context, groups, self._peers)
        retention = self.retention = Retention(context, SegmentAges(ports.filesystem), ports.loop, consumption)
        dispatcher.register(handlers_of_ours(context, groups, retention))
        host = self._host = self._connection_host(dispatcher, config, self.replicas.slices.turns)
        host.serving = False
        if (pause := ports.collector_pause) is not None:
            host.large_requests.on_rows = pause.note
        self._server = Server(host, idle_after_ms=config.connections_max_idle_ms, backlog=self._descriptors.accept_backlog)
        self.ports = await open_listeners(self._server, config.listeners)
        self.log.info("limits", **self._descriptors.as_log(), max_connections=host.admission.limits.total)
        await self._join(session, log_manager, self.replicas, adopts)
        if self._fence is not None:
            self._fence.watch(ports.loop, self._on_fence_turned)
        host.serve()
        retention.start()
        self._compact(context, retention.ledger)
        self.loop_health = LoopHealth(ports.loop, ports.clock, ports.read_usage, self.log, host.active_since)
        self.loop_health.start()
        space = DiskSpace(log_manager, ports.clock, ports.loop, self.log)
        watches = (space.on_tick, self._image_lines.on_tick)
        ticks = (self.replicas.tick, self._watch_replication, groups.on_tick, transactions.on_tick, *watches)
        memory = MemoryUpkeep(ports.heap, ports.worker, ports.clock)
        pauses = () if pause is None else (pause.on_tick,)
        pieces = (self._check_store, *ticks, self._wake_controller, memory.on_tick, *pauses)
        self._due_work = DueWork(ports.loop, ports.clock, log_manager, pieces)
        self._due_work.start()

    def _compact(self, context: BrokerContext, ledger: DeletionLedger) -> None:
        ports = self._ports
        if ports.make_heavy_worker is not None:
            self.cleaner = Cleaner(context, SegmentAges(ports.filesystem), ports.loop, ledger, ports.make_heavy_worker)
            self.cleaner.start()

    def _replicate(self, session: MetadataSession, replicas: ReplicaManager) -> None:
        """Give the partitions what they need to lead and to follow."""
        clock = self._ports.clock
        replicas.own_epoch = lambda: session.broker_epoch
        replicas.leader_throttle = ReplicationThrottle("leader", self._configs, clock, self.config.node_id, lambda: session.image)
        session.on_registration(replicas.on_registration)
        isr_changes = replicas.led.writer = IsrChanges(session, self._tasks.spawn, self.log, replicas.led.look_at)
        self.fetchers = replicas.followed.fetchers = ReplicaFetchers(
            configs=self._configs,
            session=session,
            replicas=replicas,
            peers=self._peers,
            clock=clock,
            tasks=self._tasks,
            log=self.log,
        )
        self.replication_health = ReplicationHealth(replicas, self.fetchers, isr_changes, lambda: session.is_controller, self.log)

    async def _join(self, session: MetadataSession, log_manager: LogManager, replicas: ReplicaManager, adopts: Adoption) -> None:
        """Register, take over what was found if that is wanted, and have the partitions here that the metadata give to this broker."""
        config, ports = self._configs.current, self._ports
        replicas.hosted_logs.expect(session.image, replicas.broker_id)
        check_directories(log_manager, self.config, failed=self.failed)
        session.on_image(self._on_image)
        directories = BrokerDirectories(log_manager, config.node_id)
        new_directories = {path for path, number in directories.registrations().items() if number is None}
        is_adopting = adopts is not Adoption.NONE
        registration = registration_of(config, self._advertised())
        await session.start(registration, directories, self._offline_replicas(session.image), adopts=is_adopting)
        if is_adopting:
            known = kafka_configs(ports.filesystem, config.log_dirs, self.log) if adopts is Adoption.FROM_KAFKA else {}
            await adopt_topics(session, list(log_manager.logs.values()), known, self.log)
            await finish_adoption(session)
        image = session.image
        if session.store_is_older:
            new_directories = set(config.log_dirs)
        replicas.on_image(image, image.topics.values(), ())
        settle_strays(image, log_manager.logs, replicas, ports.filesystem, new_directories, self.log)
        await replicas.settled()
        check_directories(log_manager, self.config, failed=self.failed)

    async def stop(self) -> None:
        """Stop gracefully: others lead what this broker led, owed answers go out, logs are flushed and marked clean."""
        if self._fence is not None and self._session is not None and self.config.controlled_shutdown_enable and not self.failed:
            await self._leave(self._session)
        if self._server is not None:
            self._server.stop_accepting()
            if self._groups is not None:
                self._groups.close()
            if self._transactions is not None:
                self._transactions.close()
            if self.replicas is not None:
                self.replicas.close()
            await self._server.close(0 if self._hurries.is_set() else STOP_GRACE_S)
        await self._abandon(clean=True)

    def hurry(self) -> None:
        """Have a stop that is under way wait for no client any more."""
        self._hurries.set()

    async def _leave(self, session: MetadataSession) -> None:
        """Hand leaderships over, unless a hurry ends that."""
        handing = self._tasks.spawn(hand_over(session, self._ports.clock, self.log), name="hand over")
        hurrying = self._tasks.spawn(_until(self._hurries), name="hurry")
        await asyncio.wait([handing, hurrying], return_when=asyncio.FIRST_COMPLETED)
        handing.cancel()
        hurrying.cancel()

    async def kill(self) -> None:
        """End as a process does that is killed, as far as one that lives on can do that: no peer is informed, nothing is put in order.

        Connections are cut, the lease runs on until its time is over, and the next start has to recover the logs.
        """
        if self._store is not None:
            await self._store.close()
        if self._host is not None:
            self._host.abort_connections()
        await self._abandon()

    async def _abandon(self, *, clean: bool = False) -> None:
        """End what runs. Only a `clean` end marks the log directories so."""
        parts: tuple[DueWork | Retention | Cleaner | LoopHealth | MetadataCopies | None, ...]
        parts = (self._due_work, self.retention, self.cleaner, self.loop_health, self._copies)
        for part in parts:
            if part is not None:
                part.stop()
        if self._fence is not None:
            self._fence.close()
        if self._server is not None:
            await self._server.close(0)
        if self.fetchers is not None:
            self.fetchers.close()
        self._peers.close()
        if self._session is not None:
            await self._session.close()
        await self._tasks.cancel_all()
        if self.replicas is not None:
            self.replicas.leave()
        if self._log_manager is not None:
            if clean:
                await self._log_manager_closed(self._log_manager)
            else:
                self._log_manager.release()
        if self._store is not None:
            await self._store.close()
        self._ports.worker.close()

    async def _log_manager_closed(self, log_manager: LogManager) -> None:
        try:
            log_manager.close()
        except (OSError, StorageError) as error:
            self.log.error("the logs were not stopped cleanly", error=str(error))

    def _advertised(self) -> tuple[Listener, ...]:
        """The address for clients; port 0 stands for the port that was bound."""
        return tuple(
            Listener(entry.name, entry.host, entry.port or self.ports.get(entry.name, 0), entry.protocol)
            for entry in self.config.advertised_listeners
        )

    def _on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        changed = [*delta.topics_created, *delta.topics_changed]
        new_defaults = bool(delta.broker_configs_changed) and self._follow_configs(new)
        if new_defaults:
            changed = [*new.topics.values()]
        if self.replicas is not None:
            self.replicas.on_image(new, changed, delta.topics_deleted, delta.brokers_changed, new_defaults=new_defaults)
        tell_unclean_elections(self.config.node_id, (old, new), delta, self.log)
        self._image_lines.on_image(old, new, delta)
        if self._controller_work.on_image(old, new, delta) and self._session is not None:
            self._session.wake_controller()
        if self._groups is not None:
            self._groups.on_image(delta)
        if self._transactions is not None:
            self._transactions.on_image(old, new, delta)

    def _follow_configs(self, image: MetadataImage) -> bool:
        """Take over what was set on this broker and on all; returns whether logs may have to follow."""
        before = self._configs.current
        wrong = self._configs.follow(image)
        now = self._configs.current
        if wrong is not None:
            self.log.warning("stored configuration is left aside", reason=wrong)
        if self.replicas is not None:
            self.replicas.producer_id_expiration_ms = now.producer_id_expiration_ms
        if self._host is not None:
            self._host.admission.limits = connection_limits(now, self._descriptors)
        return now != before

    def _on_directory_failed(self, directory: str, reason: str, logs: list[Log]) -> None:
        self.log.error("log directory is offline", directory=directory, reason=reason, partitions=len(logs))
        if self.replicas is not None:
            self.replicas.on_directory_failed(logs)
        if self._session is not None:
            self._session.set_offline(self._offline_replicas(self._session.image))
        if self._log_manager is not None and not self._log_manager.has_online_directory:
            self._fail("all log directories have failed, the broker stops")
        elif directory == self.config.log_dirs[0] and not self._ports.shared_metadata:
            self._fail("the log directory with the metadata store has failed, the broker stops")

    def _offline_replicas(self, image: MetadataImage) -> Replicas:
        """What other brokers may take over from log directories that failed. With a store of its own a broker has no others."""
        if not self._ports.shared_metadata or self._log_manager is None:
            return {}
        return replicas_of(image, self._log_manager.offline_partitions())

    def _fail(self, reason: str) -> None:
        if not self.failed:
            self.log.critical(reason)
            self.failed = True
            self._on_failed()

    def _check_store(self) -> None:
        if self._store is not None and self._store.failure is not None:
            self._fail(f"{self._store.failure}, the broker stops")

    def _watch_replication(self) -> None:
        if self.replication_health is not None:
            self.replication_health.on_tick(self._ports.clock.monotonic_ms())

    def _wake_controller(self) -> None:
        if self._session is not None and self._controller_work.on_tick(self._session.image, self._ports.clock.monotonic_ms()):
            self._session.wake_controller()

    def _on_fence_turned(self, up: bool) -> None:  # noqa: FBT001 - the port of a callback
        """Operations that wait end when it goes up."""
        if not up:
            self.log.info("this broker may act as a leader")
            return
        self.log.warning("the metadata store is out of reach, or has given this broker up: it doesn't act as a leader")
        if self.replicas is not None:
            self.replicas.on_fenced()

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        if isinstance(error, OldBrokerError | InconsistentClusterError):  # The others agreed while it was away; the store went back.
            self._fail(f"the broker stops: {error}")
            return
        self.log.error("task failed", task=name, error=f"{type(error).__name__}: {error}")
        if name.startswith("metadata-"):
            self._fail("the metadata session has ended, the broker stops")


async def _until(event: asyncio.Event) -> None:
    await event.wait()
