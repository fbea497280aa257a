"""A broker's life: what is started in which order, and stopped in the reverse one.

Start: metadata store → cluster id → log directories (recovery) → port bound → registration → image → logs as the image says → requests
are answered. Stop: no new connections, owed answers go out, the registration ends, logs are flushed and marked clean.

Nothing here is global: several brokers may live in one process, on real ports or on simulated ones.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from lowtide.broker.adoption import Adoption, adopt_topics, adoption_due, finish_adoption, kafka_configs
from lowtide.broker.config import BrokerConfig
from lowtide.broker.config_dynamic import BrokerConfigs
from lowtide.broker.config_topics import log_config
from lowtide.broker.configs import ConfigAdministrator
from lowtide.broker.context import BrokerContext
from lowtide.broker.dispatcher import Dispatcher
from lowtide.broker.fencing import Fence
from lowtide.broker.fetch_session import FetchSessionCache
from lowtide.broker.handlers.registry import handlers
from lowtide.broker.loop_health import LoopHealth
from lowtide.broker.replica_manager import ReplicaManager
from lowtide.broker.server import ConnectionHost, Server
from lowtide.broker.slices import run_in_slices
from lowtide.broker.topics import TopicAdministrator
from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore
from lowtide.metadata.errors import InconsistentClusterError, SessionError
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.records import Listener, MetadataCorruptError
from lowtide.metadata.session import BrokerRegistration, MetadataSession, SessionSettings
from lowtide.metadata.store import MetadataStoreError, OwnedStore
from lowtide.replication.controller import plan_controller_work
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.committer import Committer, ThreadCommitter
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem, OsFileSystem
from lowtide.runtime.long_lived import LongLived
from lowtide.runtime.random import Random, system_random
from lowtide.runtime.tasks import TaskRegistry
from lowtide.runtime.thread_usage import ReadUsage, ThreadUsageReader, no_usage
from lowtide.runtime.worker import ThreadWorker, Worker
from lowtide.storage.errors import StorageError
from lowtide.storage.log import Log, LogConfig
from lowtide.storage.log_manager import KnownTopic, LogManager, LogManagerSettings

MAXIMUM_WAITING_PER_PARTITION = 10_000
"""Requests that may wait for one partition; further ones are answered at once with what there is."""

STOP_GRACE_S = 5.0
"""How long owed answers may take at a stop."""

_TICK_S = 1.0
"""How often due work of the logs is looked for; each piece has its own interval."""


START_ERRORS = (StorageError, SessionError, MetadataStoreError, MetadataCorruptError, OSError)
"""What keeps a broker from starting through no fault of ours: each says in a sentence what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The outside world of one broker."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    filesystem: FileSystem
    random: Random
    worker: Worker
    make_committer: Callable[[str], Committer]
    open_store: Callable[[str], Awaitable[OwnedStore]]
    """Opens the metadata store: the one that is embedded in this log directory, or etcd."""
    etcd: tuple[str, ...] = ()
    """Where etcd is, if that is the metadata store."""
    read_usage: ReadUsage = no_usage
    """What the loop's thread has used; called by that thread."""


def real_ports(loop: asyncio.AbstractEventLoop, etcd: tuple[str, ...] = ()) -> Ports:
    """Threads, files and the system's clock; metadata in the first log directory, or in the etcd that is given."""
    filesystem, clock = OsFileSystem(), SystemClock()

    async def open_store(directory: str) -> OwnedStore:
        if etcd:
            return await _open_etcd(etcd)
        try:
            return await EmbeddedStore.open(f"{directory}/{METADATA_FILE}", filesystem=filesystem, clock=clock)
        except AlreadyLockedError as error:
            raise StorageError(directory, "another broker uses this log directory") from error

    return Ports(
        loop=loop,
        clock=clock,
        filesystem=filesystem,
        random=system_random(),
        worker=ThreadWorker(loop),
        make_committer=lambda directory: ThreadCommitter(filesystem, loop, f"committer {directory}"),
        open_store=open_store,
        etcd=etcd,
        read_usage=ThreadUsageReader(),
    )


async def _open_etcd(endpoints: tuple[str, ...]) -> OwnedStore:
    try:
        from lowtide.metadata.etcd import EtcdStore  # noqa: PLC0415 - takes long, and only a broker with etcd has its packages.
    except ImportError as error:
        message = f"etcd as metadata store needs packages that aren't installed ({error}): pip install 'lowtide[etcd]'"
        raise MetadataStoreError(message) from error
    return await EtcdStore.open(endpoints)


def _ignore() -> None:
    """Stands for a listener where nobody wants to know."""


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
        self.port = 0
        self.failed = False
        self._on_failed = on_failed
        self._on_partition_made = on_partition_made
        self._ports = ports
        self._tasks = TaskRegistry(self._on_task_failed)
        self._store: OwnedStore | None = None
        self._log_manager: LogManager | None = None
        self._session: MetadataSession | None = None
        self._server: Server | None = None
        self._host: ConnectionHost | None = None
        self._fence: Fence | None = None
        self._configs = BrokerConfigs(config)
        self._tick_timer: asyncio.TimerHandle | None = None
        self._upkeep_runs = False
        self.loop_health: LoopHealth | None = None
        self.replicas: ReplicaManager | None = None

    @property
    def address(self) -> str:
        """Where clients are told to connect."""
        entry = self.config.advertised_listeners[0]
        return entry._replace(port=entry.port or self.port).address

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
        if not ports.etcd:
            self._check_metadata_directory()
        self._store = await ports.open_store(config.log_dirs[0])
        place = f"etcd at {', '.join(ports.etcd)}" if ports.etcd else f"{config.log_dirs[0]}/{METADATA_FILE}"
        adopts = await adoption_due(self._store, ports.filesystem, config.log_dirs, place)
        self._session = MetadataSession(
            store=self._store,
            clock=ports.clock,
            tasks=self._tasks,
            random=ports.random,
            broker_id=config.node_id,
            settings=SessionSettings(sole_broker=bool(ports.etcd)),
            reconcile=plan_controller_work,
        )
        self._log_manager = LogManager(
            ports.filesystem,
            ports.clock,
            list(config.log_dirs),
            {directory: ports.make_committer(directory) for directory in config.log_dirs},
            ports.worker,
            ports.random,
            LogManagerSettings(
                recovery_point_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
                high_watermark_interval_ms=config.replica_high_watermark_checkpoint_interval_ms,
                producer_id_expiration_ms=config.producer_id_expiration_ms,
                default_config=_for_unknown_topics(log_config(config, {})),
            ),
        )
        try:
            cluster_id = await self._session.open(self._log_manager.known_cluster_id())
        except InconsistentClusterError as error:
            raise StorageError(", ".join(config.log_dirs), f"{error} (meta.properties)") from error
        self._log_manager.on_directory_failed = self._on_directory_failed
        self._follow_configs(self._session.image)
        now = self._configs.current
        topics = {name: KnownTopic(topic.topic_id, log_config(now, topic.configs)) for name, topic in self._session.image.topics.items()}
        self._log_manager.open(cluster_id, config.node_id, required=None if ports.etcd else config.log_dirs[0], topics=topics)
        for stray in self._log_manager.strays:
            self.log.warning("folder is not a partition of this broker, it is left alone", path=stray)
        await self._serve(self._session, self._log_manager, adopts=adopts)

    async def _serve(self, session: MetadataSession, log_manager: LogManager, *, adopts: Adoption) -> None:
        config, ports = self._configs.current, self._ports
        self.replicas = ReplicaManager(
            broker_id=config.node_id,
            log_manager=log_manager,
            clock=ports.clock,
            loop=ports.loop,
            log=self.log,
            log_config=lambda topic: log_config(self._configs.current, topic.configs),
            maximum_waiting_per_partition=MAXIMUM_WAITING_PER_PARTITION,
            on_partition_made=self._on_partition_made,
        )
        self.replicas.producer_id_expiration_ms = config.producer_id_expiration_ms
        if ports.etcd:
            self._fence = Fence(session)
            self.replicas.is_fenced = self._fence.is_up
        context = BrokerContext(
            configs=self._configs,
            replicas=self.replicas,
            metadata=session,
            sessions=FetchSessionCache(config.max_incremental_fetch_session_cache_slots, ports.random),
            clock=ports.clock,
            random=ports.random,
            tasks=self._tasks,
            worker=ports.worker,
            log=self.log,
        )
        administrator = TopicAdministrator(context)
        dispatcher = Dispatcher(spawn=self._tasks.spawn, maximum_versions=config.max_versions)
        dispatcher.register(handlers(context, administrator, ConfigAdministrator(context), dispatcher.advertised))
        host = ConnectionHost(
            dispatcher=dispatcher,
            clock=ports.clock,
            worker=ports.worker,
            log=self.log,
            maximum_frame_bytes=config.socket_request_max_bytes,
            request_memory_bytes=config.queued_max_request_bytes,
            maximum_connections=config.max_connections,
            maximum_connections_per_address=config.max_connections_per_ip,
        )
        host.serving = False
        self._host = host
        self._server = Server(host, idle_after_ms=config.connections_max_idle_ms)
        listener = config.listeners[0]
        try:
            await self._server.start(listener.host, listener.port)
        except OSError as error:
            reason = (error.strerror or str(error)).rpartition(": ")[2]  # asyncio puts before it what we say better.
            message = f"listeners={listener.text} is not possible: {reason}."
            raise OSError(message) from error
        self.port = self._server.port
        self.replicas.expect(session.image)
        session.on_image(self._on_image)
        await session.start(BrokerRegistration(self._advertised(), config.broker_rack), _predecessors(log_manager))
        log_manager.write_registration(session.broker_epoch)
        if adopts is not Adoption.NONE:
            known = kafka_configs(ports.filesystem, config.log_dirs, self.log) if adopts is Adoption.FROM_KAFKA else {}
            await adopt_topics(session, list(log_manager.logs.values()), known, self.log)
            await finish_adoption(session)
        image = session.image
        self.replicas.on_image(image, image.topics.values(), ())
        await self.replicas.settled()
        host.serve()
        self.loop_health = LoopHealth(ports.loop, ports.clock, ports.read_usage, self.log, host.active_since)
        self.loop_health.start()
        self._tick_timer = ports.loop.call_later(_TICK_S, self._on_tick)

    async def stop(self) -> None:
        """Stop gracefully: owed answers go out, logs are flushed and marked clean."""
        if self._server is not None:
            self._server.stop_accepting()
            if self.replicas is not None:
                self.replicas.close()
            await self._server.close(STOP_GRACE_S)
        await self._abandon(clean=True)

    async def _abandon(self, *, clean: bool = False) -> None:
        """End what runs. Only a `clean` end marks the log directories so."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        if self.loop_health is not None:
            self.loop_health.stop()
        if self._server is not None:
            await self._server.close(0)
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

    def _check_metadata_directory(self) -> None:
        """The metadata store needs its directory now; what is wrong with another one is found out when all are opened."""
        directory = self.config.log_dirs[0]
        try:
            self._ports.filesystem.make_directories(directory)
        except OSError as error:
            raise StorageError(directory, f"the log directory cannot be made: {error.strerror or error}") from error

    def _advertised(self) -> tuple[Listener, ...]:
        """Where clients are told to connect; port 0 stands for the port that was bound."""
        return tuple(
            Listener(entry.name, entry.host, entry.port or self.port, entry.protocol) for entry in self.config.advertised_listeners
        )

    def _on_image(self, _old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        changed = [*delta.topics_created, *delta.topics_changed]
        if delta.broker_configs_changed and self._follow_configs(new):
            changed = [*new.topics.values()]
        if self.replicas is not None and (changed or delta.topics_deleted):
            self.replicas.on_image(new, changed, delta.topics_deleted)

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
            self._host.maximum_connections, self._host.maximum_per_address = now.max_connections, now.max_connections_per_ip
        return now != before

    def _on_directory_failed(self, directory: str, reason: str, logs: list[Log]) -> None:
        self.log.error("log directory is offline", directory=directory, reason=reason, partitions=len(logs))
        if self.replicas is not None:
            self.replicas.on_directory_failed(logs)
        if self._log_manager is not None and not self._log_manager.has_online_directory:
            self._fail("all log directories have failed, the broker stops")
        elif directory == self.config.log_dirs[0] and not self._ports.etcd:
            self._fail("the log directory with the metadata store has failed, the broker stops")

    def _fail(self, reason: str) -> None:
        """Nothing can be served any more."""
        if not self.failed:
            self.log.critical(reason)
            self.failed = True
            self._on_failed()

    def _on_tick(self) -> None:
        assert self._log_manager is not None
        if self._store is not None and self._store.failure is not None:
            self._fail(f"{self._store.failure}, the broker stops")
        if self._fence is not None:
            self._look_at_fence(self._fence)
        if self.replicas is not None:
            self.replicas.tick()
        if not self._upkeep_runs:
            self._upkeep_runs = True
            steps = self._log_manager.due_work(self._ports.clock.wall_ms())
            run_in_slices(self._ports.loop, self._ports.clock, steps, self._on_upkeep_done)
        self._tick_timer = self._ports.loop.call_later(_TICK_S, self._on_tick)

    def _on_upkeep_done(self) -> None:
        self._upkeep_runs = False

    def _look_at_fence(self, fence: Fence) -> None:
        """Say when the fence goes up or down, and tell those who wait when it goes up."""
        turned = fence.turned()
        if turned:
            self.log.warning("the metadata store is out of reach, or has given this broker up: it doesn't act as a leader")
            if self.replicas is not None:
                self.replicas.on_fenced()
        elif turned is False:
            self.log.info("this broker may act as a leader")

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        self.log.error("task failed", task=name, error=f"{type(error).__name__}: {error}")
        if name.startswith("metadata-"):
            self._fail("the metadata session has ended, the broker stops")


def _predecessors(log_manager: LogManager) -> list[int]:
    """Registrations of earlier processes with these directories, whose locks are ours now; none where that can't be read."""
    try:
        return [epoch for epoch in log_manager.registrations().values() if epoch is not None]
    except OSError:
        return []


def _for_unknown_topics(config: LogConfig) -> LogConfig:
    """What logs are loaded with whose topics aren't known: left by Kafka, to be taken over, or left of deleted topics.

    They may have been compacted, so a gap between two segments is no damage, whatever the default policy is; it isn't to Kafka either.
    """
    return replace(config, cleanup_policy=config.cleanup_policy | {"compact"})


async def run_broker(config: BrokerConfig, *, logger: Any, etcd: tuple[str, ...] = (), ready: Callable[[str], None] | None = None) -> int:
    """Run a broker on real ports until SIGTERM or SIGINT. Returns the exit code: 0 stopped, 1 failed while running.

    `etcd`: its endpoints, if the metadata are there.

    Errors: those of `Broker.start`.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    long_lived = LongLived()
    broker = Broker(config, real_ports(loop, etcd), logger, on_failed=stopping.set, on_partition_made=long_lived.note_made)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await broker.start()
    address = broker.address
    long_lived.freeze()
    logger.info("ready", address=address, node_id=config.node_id, log_dirs=list(config.log_dirs))
    if ready is not None:
        ready(address)
    await stopping.wait()
    logger.info("stopping", reason="failure" if broker.failed else "signal")
    await broker.stop()
    return 1 if broker.failed else 0
