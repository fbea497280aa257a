"""A broker's life: the order in which its parts start, and stop in reverse.

Start: open the metadata store, find the cluster id, open (and recover) the log directories, bind the ports, register,
host the partitions of the image, answer requests. Stop: refuse new connections, send pending responses, end the
registration, flush the logs and mark them clean.

Nothing is global: several brokers can run in one process, on real or simulated ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from lowtide.broker.administration.partition_administrator import controller_settings
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.dynamic_config import BrokerConfigs
from lowtide.broker.config.topic_config import log_config
from lowtide.broker.descriptors import share_out
from lowtide.broker.lifecycle.adoption import Adoption, adopt_topics, adoption_due, finish_adoption, kafka_configs
from lowtide.broker.lifecycle.broker_base import BrokerBase
from lowtide.broker.lifecycle.broker_registration import hand_over, make_session, registration_of, warn_without_raft_log
from lowtide.broker.lifecycle.image_lines import ImageLines, UncleanElections
from lowtide.broker.lifecycle.log_directories import (
    BrokerDirectories,
    check_directories,
    check_metadata_directory,
    make_log_manager,
    replicas_of,
)
from lowtide.broker.lifecycle.metadata_copies import MetadataCopies, read_copies
from lowtide.broker.lifecycle.ports import Ports
from lowtide.broker.lifecycle.serving import Serving
from lowtide.broker.lifecycle.start_lines import log_recoveries, warn_of_open_listeners
from lowtide.broker.partitions.assigned_partitions import AssignedPartitions
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.partitions.strays import settle_strays
from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.embedded import METADATA_FILE
from lowtide.metadata.errors import InconsistentClusterError, OldBrokerError, OtherClusterError, SessionError
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.metadata_copy import MetadataCopy, topic_id_in
from lowtide.metadata.records import Listener, MetadataCorruptError
from lowtide.metadata.session import MetadataSession
from lowtide.metadata.store import MetadataStoreError, OwnedStore
from lowtide.replication.controller import ControllerWork
from lowtide.runtime.http_site import SiteLoader
from lowtide.runtime.tasks import TaskRegistry
from lowtide.storage.directory.log_manager import KnownTopic, LogManager
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log

__all__ = ["START_ERRORS", "Broker", "Ports"]

STOP_GRACE_S = 5.0
"""The time for sending pending responses at a stop."""

START_ERRORS = (StorageError, SessionError, MetadataStoreError, MetadataCorruptError, OSError)
"""Expected errors that stop a start; each has a message for the operator."""


class Broker:
    """One broker. Call `start` once, then `stop` once."""

    def __init__(
        self,
        config: BrokerConfig,
        ports: Ports,
        log: Any,
        *,
        on_failed: Callable[[], None] = lambda: None,
        sites: Sequence[SiteLoader] = (),
    ) -> None:
        """Calls `on_failed` when the broker cannot continue.

        `sites` are served over HTTP in addition to the broker's own.
        """
        self.config = config
        self.log = log
        self.ports: dict[str, int] = {}
        self.failed = False
        self.serving: Serving | None = None
        self._on_failed = on_failed
        self._ports = ports
        self._tasks = TaskRegistry(self._on_task_failed)
        self._base = BrokerBase(
            configs=BrokerConfigs(config),
            descriptors=share_out(ports.open_files),
            ports=ports,
            tasks=self._tasks,
            log=log,
            unclean_elections=UncleanElections(config.node_id, log),
            sites=tuple(sites),
        )
        self._controller_work = ControllerWork(config.node_id, lambda: controller_settings(self._base.configs.current))
        self._image_lines = ImageLines(
            config.node_id, log, () if ports.neighbours is None else ports.neighbours.machine
        )
        self._store: OwnedStore | None = None
        self._log_manager: LogManager | None = None
        self._session: MetadataSession | None = None
        self._copies: MetadataCopies | None = None
        self._hurries = asyncio.Event()

    @property
    def address(self) -> str:
        entry = self.config.advertised_listeners[0]
        return entry._replace(port=entry.port or self.ports.get(entry.name, 0)).address

    @property
    def port(self) -> int:
        return self.ports[self.config.listeners[0].name]

    @property
    def http_addresses(self) -> tuple[str, ...]:
        return () if self.serving is None else self.serving.http.addresses

    @property
    def log_manager(self) -> LogManager:
        assert self._log_manager is not None, "the broker has not begun to start"
        return self._log_manager

    @property
    def replicas(self) -> ReplicaManager | None:
        return None if self.serving is None else self.serving.replicas

    async def start(self) -> None:
        """Starts the broker and returns when clients are served.

        Errors: StorageError, SessionError, MetadataStoreError, OSError (the port), each with a message for the
        operator. Parts that were started are stopped again.
        """
        try:
            await self._start()
        except START_ERRORS:
            # The logs are intact: a refused start must not cause a recovery at the next one.
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
        self._log_manager = make_log_manager(
            self._base.configs, ports, self._base.descriptors, self._on_directory_failed
        )
        try:
            remembered = (
                {}
                if adopts is not Adoption.NONE
                else read_copies(ports.filesystem, self._log_manager.directories.paths, self.log)
            )
            cluster_id = await self._session.open(self._log_manager.directories.known_cluster_id(), remembered)
        except OtherClusterError as error:
            raise StorageError(", ".join(config.log_dirs), f"{error} (meta.properties)") from error
        await warn_without_raft_log(self._store, ports.shared_metadata, self.log)
        if self._session.nested is not None:
            self.log.warning(
                "the key prefixes of two clusters are nested, each cluster ignores the other's keys",
                reason=self._session.nested,
            )
        self._image_lines.log_unreadable(MetadataImage(), self._session.image)
        self._follow_configs(self._session.image)
        now = self._base.configs.current
        topics = {
            name: KnownTopic(topic.topic_id, log_config(now, topic.configs))
            for name, topic in self._session.image.topics.items()
        }
        began_ms = ports.clock.monotonic_ms()
        self._log_manager.open(
            cluster_id,
            config.node_id,
            required=None if ports.shared_metadata else config.log_dirs[0],
            topics=topics,
            deleted_topics=self._session.image.deleted_topics,
            # With embedded metadata no topic is deleted while the broker is down.
            remembered_topics={path: partial(topic_id_in, copy) for path, copy in remembered.items()}
            if ports.shared_metadata
            else {},
        )
        self._follow_cordoned()
        log_recoveries(self._log_manager, ports.clock.monotonic_ms() - began_ms, self.log)
        self._session.keep(self._keep_copies)
        for path in self._log_manager.directories.strays:
            self.log.warning("folder is not a partition of this broker and is ignored", path=path)
        await self._serve(self._session, self._log_manager, adopts)

    def _keep_copies(self, copy: MetadataCopy) -> MetadataCopies:
        """Starts to copy the metadata into the log directories."""
        assert self._log_manager is not None
        self._copies = MetadataCopies(self._ports.filesystem, self._ports.worker, self._log_manager, copy)
        self._copies.begin()
        return self._copies

    async def _serve(self, session: MetadataSession, log_manager: LogManager, adopts: Adoption) -> None:
        pieces = (self._check_store, self._image_lines.on_tick, self._wake_controller)
        self.serving = Serving(self._base, session, log_manager, pieces)
        warn_of_open_listeners(self._base.configs.current, session.image, self.log)
        self.ports = await self.serving.listen()
        await self._join(session, log_manager, self.serving.partitions.assigned, adopts)
        self.serving.begin()

    async def _join(
        self, session: MetadataSession, log_manager: LogManager, assigned: AssignedPartitions, adopts: Adoption
    ) -> None:
        """Registers the broker, takes over topics if required, and hosts its assigned partitions."""
        config, ports = self._base.configs.current, self._ports
        assigned.hosted_logs.expect(session.image, config.node_id)
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
        if session.registrar.store_is_older:
            new_directories = set(config.log_dirs)
        assigned.on_image(image, image.topics.values(), ())
        strays = settle_strays(image, config.node_id, log_manager.logs, ports.filesystem, new_directories, self.log)
        if strays:
            assigned.remove(strays)
        await assigned.settled()
        check_directories(log_manager, self.config, failed=self.failed)

    async def stop(self) -> None:
        """Stops gracefully: leaderships move, pending responses are sent, logs are flushed and marked clean."""
        serving = self.serving
        if serving is not None:
            hands_over = serving.partitions.fence is not None and self.config.controlled_shutdown_enable
            if hands_over and self._session is not None and not self.failed:
                await self._leave(self._session)
            await serving.close(0 if self._hurries.is_set() else STOP_GRACE_S)
        await self._abandon(clean=True)

    def hurry(self) -> None:
        self._hurries.set()

    async def _leave(self, session: MetadataSession) -> None:
        handing = self._tasks.spawn(hand_over(session, self._ports.clock, self.log), name="hand over")
        hurrying = self._tasks.spawn(self._hurries.wait(), name="hurry")
        await asyncio.wait([handing, hurrying], return_when=asyncio.FIRST_COMPLETED)
        handing.cancel()
        hurrying.cancel()

    async def kill(self) -> None:
        """Ends like a killed process: without notifying peers and without a clean stop.

        Connections are aborted, the lease expires by itself, and the next start recovers the logs.
        """
        if self._store is not None:
            await self._store.close()
        if self.serving is not None:
            self.serving.host.abort_connections()
        await self._abandon()

    async def _abandon(self, *, clean: bool = False) -> None:
        """Stops all parts. Marks the log directories as clean only if `clean`."""
        if self._copies is not None:
            self._copies.stop()
        if self.serving is not None:
            await self.serving.stop()
        if self._session is not None:
            await self._session.close()
        await self._tasks.cancel_all()
        if self.serving is not None:
            # The logs are closing: results of a worker must find no partition to append to.
            self.serving.replicas.partitions.clear()
        if self._log_manager is not None:
            if clean:
                self._close_logs(self._log_manager)
            else:
                self._log_manager.release()
        if self._store is not None:
            await self._store.close()
        self._ports.worker.close()

    def _close_logs(self, log_manager: LogManager) -> None:
        try:
            log_manager.close()
        except (OSError, StorageError) as error:
            self.log.error("the logs were not stopped cleanly", error=str(error))

    def _advertised(self) -> tuple[Listener, ...]:
        """Returns the advertised listeners; port 0 is replaced by the bound port."""
        return tuple(
            Listener(entry.name, entry.host, entry.port or self.ports.get(entry.name, 0), entry.protocol)
            for entry in self.config.advertised_listeners
        )

    def _on_image(self, old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        new_defaults = bool(delta.broker_configs_changed) and self._follow_configs(new)
        if self.serving is not None:
            self.serving.on_image((old, new), delta, new_defaults=new_defaults)
        self._base.unclean_elections.on_image(old, new, delta)
        self._image_lines.on_image(old, new, delta)
        if self._controller_work.on_image(old, new, delta) and self._session is not None:
            self._session.controller.wake()

    def _follow_configs(self, image: MetadataImage) -> bool:
        """Applies the dynamic configuration; returns whether logs may be affected."""
        configs = self._base.configs
        before = configs.current
        wrong = configs.follow(image)
        if wrong is not None:
            self.log.warning("stored configuration is ignored", reason=wrong)
        self._follow_cordoned()
        if self.serving is not None:
            self.serving.on_configs()
        return configs.current != before

    def _follow_cordoned(self) -> None:
        """Keeps new logs out of cordoned directories, and new partitions off this broker if no other one is left."""
        if self._log_manager is not None and self._session is not None:
            directories = self._log_manager.directories
            directories.cordon(self._base.configs.current.cordoned_log_dirs)
            self._session.reports.set_cordoned(cordoned=directories.all_cordoned)

    def _on_directory_failed(self, directory: str, reason: str, logs: list[Log]) -> None:
        self.log.error("log directory is offline", directory=directory, reason=reason, partitions=len(logs))
        if self.serving is not None:
            self.serving.on_directory_failed(logs)
        if self._session is not None:
            self._session.reports.set_offline(self._offline_replicas(self._session.image))
        self._follow_cordoned()
        if self._log_manager is not None and not self._log_manager.directories.any_is_online:
            self._fail("all log directories have failed, the broker stops")
        elif directory == self.config.log_dirs[0] and not self._ports.shared_metadata:
            self._fail("the log directory with the metadata store has failed, the broker stops")

    def _offline_replicas(self, image: MetadataImage) -> Replicas:
        """Returns the replicas in failed log directories, which other brokers can take over.

        A broker with its own store has no other brokers.
        """
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

    def _wake_controller(self) -> None:
        if self._session is not None and self._controller_work.on_tick(
            self._session.image, self._ports.clock.monotonic_ms()
        ):
            self._session.controller.wake()

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        if isinstance(error, OldBrokerError | InconsistentClusterError):
            # The cluster upgraded while the broker was down, or the store was restored from a backup.
            self._fail(f"the broker stops: {error}")
            return
        self.log.error("task failed", task=name, error=f"{type(error).__name__}: {error}")
        if name.startswith("metadata-"):
            self._fail("the metadata session has ended, the broker stops")
