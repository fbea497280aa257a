"""The parts of a broker that serve clients: partitions, coordinators, listeners, retention and upkeep.

The constructor makes all parts, each from existing ones. `listen` binds the ports, `begin` starts the background work,
and `stop` ends it in the reverse order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from lowtide.broker.administration.config_administrator import ConfigAdministrator
from lowtide.broker.administration.delegation_token_administrator import TokenSweep
from lowtide.broker.administration.forwarding import Forwarder
from lowtide.broker.administration.topic_administrator import TopicAdministrator
from lowtide.broker.audit.audit_log import AuditEvent
from lowtide.broker.config.broker_config import balance_rules
from lowtide.broker.config.http_listeners import HTTPS
from lowtide.broker.config.key import number
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.share_state.share_settings import share_groups_enabled
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.handlers.registry import Coordinators, HandlerParts, handlers
from lowtide.broker.handlers.share.registry import make_share_parts
from lowtide.broker.http.readiness import BrokerStage
from lowtide.broker.ledger.erasure_ledger import ErasureLedger
from lowtide.broker.ledger.erasure_parts import make_erasure_parts
from lowtide.broker.lifecycle.auditing import make_audit, make_authorizer
from lowtide.broker.lifecycle.certificates import ListenerCertificates
from lowtide.broker.lifecycle.disk_space import DiskSpace
from lowtide.broker.lifecycle.due_work import DueWork, MemoryUpkeep
from lowtide.broker.lifecycle.http_parts import make_http
from lowtide.broker.lifecycle.leader_loads import LeaderLoads
from lowtide.broker.lifecycle.listener_logins import ListenerLogins
from lowtide.broker.lifecycle.listener_security import listener_security, peer_login
from lowtide.broker.lifecycle.loop_health import LoopHealth
from lowtide.broker.lifecycle.partition_parts import build_partitions
from lowtide.broker.network.admission.admission import connection_limits
from lowtide.broker.network.connection.answer_memory import AnswerFiles
from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.broker.network.connection.server import Server, open_listeners
from lowtide.broker.network.peer_client import PeerClients
from lowtide.broker.network.routing.dispatcher import Dispatcher
from lowtide.broker.observation.health import BrokerObservation, Vitals
from lowtide.broker.observation.history import LogHistory
from lowtide.broker.partitions.batch_lane import BatchLane
from lowtide.broker.partitions.fetch.fetch_session import FetchSessionCache
from lowtide.broker.partitions.log_searches import LogSearches
from lowtide.broker.quotas.client_quotas import ClientQuotas
from lowtide.broker.quotas.creation_rates import configured_window, creation_rates
from lowtide.broker.quotas.metered_handlers import Meter
from lowtide.broker.request_context import Client
from lowtide.broker.retention.cleaner import Cleaner
from lowtide.broker.retention.consumption import Consumption
from lowtide.broker.retention.log_retention import Retention
from lowtide.storage.log.retention.segment_ages import SegmentAges

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.broker_base import BrokerBase
    from lowtide.broker.metrics.collector import Collector
    from lowtide.metadata.image import ImageDelta, MetadataImage, TopicImage
    from lowtide.metadata.session import MetadataSession
    from lowtide.replication.leader_balance import LeaderMove
    from lowtide.runtime.http_site import Site
    from lowtide.storage.directory.log_manager import LogManager
    from lowtide.storage.log.log import Log


class Serving:
    """The parts that serve clients. Call `listen`, `begin`, then `stop`, at any time."""

    def __init__(
        self,
        base: BrokerBase,
        session: MetadataSession,
        log_manager: LogManager,
        pieces: Iterable[Callable[[], object]],
    ) -> None:
        """`pieces` are called once a second, in addition to the parts' own work."""
        self._base = base
        config, ports = base.configs.current, base.ports
        self._certificates = ListenerCertificates(config, base.log)
        self._logins = ListenerLogins(base, lambda: session.image)
        self._own_login = config.inter_broker_login
        peers = PeerClients(
            ports.clock,
            base.tasks,
            base.log,
            client_id=f"broker-{config.node_id}",
            cluster_id=session.image.cluster_id,
            listener_name=config.inter_broker_listener,
            login=peer_login(base, self._certificates.by_listener),
        )
        self.partitions = build_partitions(base, session, log_manager, peers)
        self.replicas = self.partitions.replicas
        self._audit = make_audit(base.configs.current, ports, base.log)
        context = self._context(session)
        self._creation_rates = creation_rates(config)
        self._quotas = ClientQuotas(
            lambda: session.image.client_quotas,
            lambda: configured_window(base.configs.current, "quota.window"),
            lambda: configured_window(base.configs.current, "controller.quota.window"),
            lambda: self._creation_rates,
        )
        meter = Meter(self._quotas, ports.clock, session, lambda: base.configs.current.num_partitions)
        administrator = TopicAdministrator(context, Forwarder(session, peers), meter.change_partitions)
        is_alone = self.partitions.fence is None
        shares = None
        if share_groups_enabled(config.values):
            shares = make_share_parts(context, administrator, peers, ports.loop, is_alone=is_alone)
        persister = None if shares is None else shares.persister
        groups = GroupCoordinator(context, administrator, ports.loop, is_alone=is_alone, persister=persister)
        dispatcher = Dispatcher(
            spawn=base.tasks.spawn,
            maximum_versions=config.max_versions,
            rows_max=config.request_rows_max,
            metered=meter.metered,
        )
        transactions = TransactionCoordinator(context, administrator, peers, groups, ports.loop, is_alone=is_alone)
        ledger = ErasureLedger(context, administrator, peers, is_alone=is_alone)
        configs = ConfigAdministrator(context, (self._certificates, self._logins))
        consumption = Consumption(context, groups, peers)
        self.retention = Retention(context, SegmentAges(ports.filesystem), ports.loop, consumption)
        self.cleaner = self._cleaner(context)
        self.host = self._connection_host(dispatcher)
        idle_ms, login_ms = config.connections_max_idle_ms, config.login_timeout_ms
        self.server = Server(
            self.host, idle_after_ms=idle_ms, login_timeout_ms=login_ms, backlog=base.descriptors.accept_backlog
        )
        self.http, self._readiness = make_http(
            base, context, log_manager, self._certificates, self._on_login, (self._load_metrics,)
        )
        self._health = LoopHealth(ports.loop, ports.clock, ports.read_usage, base.log, self.host.active_since)
        self._leader_loads = self._make_leader_loads(context)
        self.observed = self._observed()
        erasures = make_erasure_parts(context, ledger, self.observed.searches, peers)
        self.coordinators = Coordinators(groups, transactions, shares, erasures)
        known = (context, administrator, configs, self.coordinators, self.retention, self.observed, dispatcher)
        dispatcher.register(handlers(HandlerParts(*known)))
        ticks = (*self._ticks(log_manager), TokenSweep(context).on_tick, *pieces)
        self._due_work = DueWork(ports.loop, ports.clock, log_manager.directories, ticks)

    def _make_leader_loads(self, context: BrokerContext) -> LeaderLoads | None:
        """Returns None if no leadership moves between processes."""
        ports, rules = self._base.ports, balance_rules(self._base.configs.current)
        if rules is None or ports.neighbours is None or len(ports.neighbours.machine) == 1:
            return None
        return LeaderLoads(context, ports, ports.neighbours, full=rules.full)

    def _observed(self) -> BrokerObservation:
        ports = self._base.ports
        vitals = Vitals(ports.clock.monotonic_ms(), self._health.snapshot, lambda: len(self.host.connections))
        history = LogHistory(self.replicas.partitions, ports.loop, ports.clock)
        base = self._base
        searches = LogSearches(self.replicas, base.configs, ports.random, base.log, ports.make_heavy_worker)
        return BrokerObservation(history, vitals, searches)

    def _context(self, session: MetadataSession) -> BrokerContext:
        base, ports = self._base, self._base.ports
        return BrokerContext(
            configs=base.configs,
            replicas=self.replicas,
            assigned=self.partitions.assigned,
            metadata=session,
            sessions=FetchSessionCache(base.configs.current.max_incremental_fetch_session_cache_slots, ports.random),
            clock=ports.clock,
            random=ports.random,
            tasks=base.tasks,
            worker=ports.worker,
            batch_lane=BatchLane(ports.worker),
            log=base.log,
            authorizer=make_authorizer(base.configs.current, session, self._audit),
            audit=self._audit,
        )

    def _cleaner(self, context: BrokerContext) -> Cleaner | None:
        """Creates the cleaner; None without worker processes."""
        ports = self._base.ports
        if ports.make_heavy_worker is None:
            return None
        ages = SegmentAges(ports.filesystem)
        return Cleaner(context, ages, ports.loop, self.retention.ledger, ports.make_heavy_worker)

    def _connection_host(self, dispatcher: Dispatcher) -> ConnectionHost:
        base, config, ports = self._base, self._base.configs.current, self._base.ports
        return ConnectionHost(
            dispatcher=dispatcher,
            clock=ports.clock,
            worker=ports.worker,
            log=base.log,
            maximum_frame_bytes=config.socket_request_max_bytes,
            request_memory_bytes=config.queued_max_request_bytes,
            answer_memory_bytes=config.answers_unread_max_bytes,
            follower_fetch_bytes=config.follower_fetch_bytes,
            limits=connection_limits(config, base.descriptors),
            request_rows_max=config.request_rows_max,
            turns=self.replicas.turns,
            rounds=self.replicas.waiting.rounds,
            connection_wait_ms=lambda address, listener: self._quotas.connect(
                address, listener, ports.clock.monotonic_ms()
            ),
            on_login=self._on_login,
            serving=False,
        )

    def _ticks(self, log_manager: LogManager) -> list[Callable[[], object]]:
        base, ports, parts = self._base, self._base.ports, self.partitions
        return [
            parts.assigned.tick,
            lambda: parts.health.on_tick(ports.clock.monotonic_ms()),
            self.coordinators.groups.on_tick,
            self.coordinators.transactions.on_tick,
            *(() if self.coordinators.shares is None else self.coordinators.shares.ticks),
            self._audit.on_tick,
            self.observed.history.on_tick,
            self.coordinators.erasures.lost.on_tick,
            self.coordinators.erasures.standing.on_tick,
            DiskSpace(log_manager.directories, ports.clock, ports.loop, base.log).on_tick,
            MemoryUpkeep(ports.heap, ports.worker, ports.clock).on_tick,
            AnswerFiles(log_manager.files, self.host.answers).on_tick,
            *(() if self._leader_loads is None else (self._leader_loads.on_tick,)),
        ]

    # Start

    async def listen(self) -> dict[str, int]:
        """Binds the listeners; connections wait until `begin`. Returns the ports by listener name. Errors: OSError."""
        base = self._base
        config, certificates = base.configs.current, self._certificates.by_listener
        await self._certificates.load()
        if certificates:
            base.tasks.spawn(
                self._certificates.watch(number(config.values["lowtide.tls.reload.interval.ms"])), name="certificates"
            )
        await self._logins.load()
        ports = await open_listeners(
            self.server, config.listeners, listener_security(config, certificates, self._logins.by_listener)
        )
        await self.http.listen(lambda: certificates[HTTPS].context)
        base.log.info("limits", **base.descriptors.as_log(), max_connections=self.host.admission.limits.total)
        return ports

    def begin(self) -> None:
        """Starts answering requests and the background work: the broker is registered and hosts its partitions."""
        if self.partitions.fence is not None:
            self.partitions.fence.watch(self._base.ports.loop, self._on_fence_turned)
        self.host.serve()
        self.retention.start()
        if self.cleaner is not None:
            self.cleaner.start()
        self._health.start()
        self._due_work.start()
        self._readiness.enter(BrokerStage.SERVES)

    # Events

    def on_image(self, images: tuple[MetadataImage, MetadataImage], delta: ImageDelta, *, new_defaults: bool) -> None:
        """Applies a change of the metadata: `images` before and after it.

        `new_defaults`: the inherited configuration of topics changed.
        """
        old, new = images
        if old.client_quotas is not new.client_quotas:
            self.host.dispatcher.remake_routes()  # The first or last quota of a client decides who is metered.
        changed: list[TopicImage] = (
            [*new.topics.values()] if new_defaults else [*delta.topics_created, *delta.topics_changed]
        )
        assigned, different = self.partitions.assigned, delta.partitions_changed if self.replicas.image is old else {}
        assigned.on_image(
            new, changed, delta.topics_deleted, delta.brokers_changed, new_defaults=new_defaults, different=different
        )
        self.coordinators.erasures.lost.on_image(new, delta)
        self.coordinators.erasures.standing.on_image(new)
        self.coordinators.groups.on_image(delta)
        self.coordinators.transactions.on_image(old, new, delta)
        if self.coordinators.shares is not None:
            self.coordinators.shares.coordinator.on_image(delta)

    def on_configs(self) -> None:
        base = self._base
        self._creation_rates = creation_rates(base.configs.current)
        self.host.admission.follow(connection_limits(base.configs.current, base.descriptors))
        if self._certificates.follow(base.configs.current):
            base.tasks.spawn(self._certificates.reload(), name="renewed certificates")
        self._logins.follow(base.configs.current)
        if base.configs.current.inter_broker_login != self._own_login:
            self._own_login = base.configs.current.inter_broker_login
            self.partitions.peers.use(peer_login(base, self._certificates.by_listener))

    def give(self, move: LeaderMove) -> None:
        if self._leader_loads is not None:
            self._leader_loads.give(move)

    def on_directory_failed(self, logs: list[Log]) -> None:
        self.partitions.hosted.on_directory_failed(logs)

    @cached_property
    def metrics(self) -> Collector:
        from lowtide.broker.metrics.collector import Collector  # noqa: PLC0415 - rarely needed
        from lowtide.broker.metrics.sources import Sources  # noqa: PLC0415
        from lowtide.metadata.embedded import METADATA_FILE  # noqa: PLC0415
        from lowtide.runtime.process_figures import ProcessFiguresReader  # noqa: PLC0415

        configs = self._base.configs
        sources = Sources(
            broker=self.coordinators.groups.broker,
            groups=self.coordinators.groups,
            transactions=self.coordinators.transactions,
            shares=None if self.coordinators.shares is None else self.coordinators.shares.partitions,
            host=self.host,
            fetchers=self.partitions.fetchers,
            isr_changes=self.partitions.isr_changes,
            retention=self.retention,
            cleaner=self.cleaner,
            unclean_elections=lambda: self._base.unclean_elections.count,
            leaders_given=lambda: 0 if self._leader_loads is None else self._leader_loads.moves,
            loop_lag=self._health.snapshot,
            read_usage=self._base.ports.read_usage,
            read_process=ProcessFiguresReader(),
            peers=self.partitions.peers,
            quotas=self._quotas,
            filesystem=self._base.ports.filesystem,
            metadata_file="" if self._base.ports.shared_metadata else f"{configs.current.log_dirs[0]}/{METADATA_FILE}",
        )
        neighbours = self._base.ports.neighbours
        return Collector(
            sources,
            has_partitions=lambda: configs.current.values["lowtide.metrics.partitions"] is True,
            others=None if neighbours is None else lambda form: neighbours.pages(form.value),
        )

    def _load_metrics(self) -> Site:
        from lowtide.broker.metrics.site import MetricsSite  # noqa: PLC0415 - imports aiohttp

        return MetricsSite(self.metrics)

    def _on_login(self, client: Client, failure: str) -> None:
        listener, result = client.listener_name, "refused" if failure else "accepted"
        self.host.dispatcher.times.logins[listener, result] += 1
        event = AuditEvent.LOGINS_REFUSED if failure else AuditEvent.LOGINS
        reason = {"reason": failure} if failure else {}
        self._audit.tried(event, f"login {result}", client, listener=listener, **reason)

    def _on_fence_turned(self, up: bool) -> None:  # noqa: FBT001 - the port of a callback
        """Ends waiting operations when the fence goes up."""
        if not up:
            self._base.log.info("broker is unfenced: it can act as a leader")
            return
        self._base.log.warning("broker is fenced: the metadata store is unreachable, or ended its session")
        self.partitions.hosted.on_fenced()

    # Stop

    async def close(self, grace_s: float) -> None:
        """Stops accepting, completes waiting requests, and sends pending responses for at most `grace_s` seconds."""
        self._readiness.enter(BrokerStage.STOPS)
        self.server.stop_accepting()
        self.coordinators.groups.close()
        self.coordinators.transactions.close()
        if self.coordinators.shares is not None:
            self.coordinators.shares.close()
        self.replicas.close()
        await self.server.close(grace_s)

    async def stop(self) -> None:
        """Stops the background work and closes every connection. The session may still be open."""
        self._due_work.stop()
        self.retention.stop()
        if self.cleaner is not None:
            self.cleaner.stop()
        self.observed.searches.stop()
        self._health.stop()
        if self.partitions.fence is not None:
            self.partitions.fence.close()
        await self.server.close(0)
        await self.http.close()
        self.partitions.fetchers.close()
        self.partitions.peers.close()
        self._audit.close()
