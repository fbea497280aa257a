"""A broker's session with the cluster: registration, lease, the image it follows, and writes that are fenced.

One lease carries the broker's registration and, if it has it, the controller's key; the revision of the registration is
the broker epoch. The session keeps the lease and the image, and runs what goes on as long as it is open.

Guards: the image never goes back; a broker whose lease may have ended takes itself for fenced before the store does,
and so does one that can't show how young its image is.

Does not: take the steps of a registration (`registration`), fence writes (`held_registration`), report what a broker
can't serve (`broker_reports`), do the controller's work (`controller_work`), close the store.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.broker_reports import BrokerReports
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.controller_work import ControllerWork, Reconcile
from lowtide.metadata.errors import InconsistentClusterError, OtherClusterError
from lowtide.metadata.held_registration import HeldRegistration
from lowtide.metadata.image_follower import ImageFollower
from lowtide.metadata.lease import HeldLease
from lowtide.metadata.registration import BrokerRegistration, LogDirectories, NoDirectories, Registrar
from lowtide.metadata.store import NO_LEASE, AmbiguousError, LeaseGoneError, MetadataStore, Revision, UnavailableError
from lowtide.metadata.store_guard import StoreGuard
from lowtide.metadata.writer import FencedWriter, Retry
from lowtide.protocol.types import topic_id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from lowtide.metadata.image import ImageDelta, MetadataImage
    from lowtide.metadata.image_follower import CopyKeeper, ImageListener
    from lowtide.metadata.lease_keeper import LeaseKeeper
    from lowtide.metadata.metadata_copy import MetadataCopy
    from lowtide.protocol.types import BrokerEpoch, BrokerId
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry


class SessionSettings(msgspec.Struct, frozen=True):
    """How a session behaves.

    `registration_timeout_ms`: how long it waits for a predecessor's lease to end. `image_age_ms`: how old an image may be, at most, for
    all that can be shown; 0 where the image is as young as the store.
    """

    prefix: bytes = b"/lowtide/"
    time_to_live_ms: int = 4000
    keep_alive_ms: int = 500
    registration_timeout_ms: int = 30_000
    ambiguous_timeout_ms: int = 10_000
    image_age_ms: int = 0


class SessionPorts(msgspec.Struct, frozen=True, kw_only=True):
    """Through what a session reaches the world.

    `keeper` renews the lease while the loop is held; it is closed with the session.
    """

    store: MetadataStore
    clock: Clock
    tasks: TaskRegistry
    random: Random
    keeper: LeaseKeeper | None = None


class MetadataSession:
    """One broker's session. Used from one event loop."""

    def __init__(
        self,
        ports: SessionPorts,
        *,
        broker_id: BrokerId,
        settings: SessionSettings | None = None,
        reconcile: Reconcile | None = None,
    ) -> None:
        """`reconcile` says, whenever brokers came or went while this one is controller, what must be changed; it may be asked often."""
        store, clock = ports.store, ports.clock
        self._store = store
        self._clock = clock
        self._tasks = ports.tasks
        self._random = ports.random
        self._settings = settings or SessionSettings()
        prefix = self._settings.prefix
        self._follower = ImageFollower(
            store=store,
            clock=clock,
            prefix=prefix,
            age_ms=self._settings.image_age_ms,
            pause_ms=self._settings.keep_alive_ms,
        )
        self._follower.on_image(self._on_image)
        self._registrar = Registrar(
            store=store,
            clock=clock,
            prefix=prefix,
            broker_id=broker_id,
            time_to_live_ms=self._settings.time_to_live_ms,
            follower=self._follower,
        )
        self._store_guard = StoreGuard(store, self._follower, prefix, broker_id, ports.random, clock)
        self._lease = HeldLease(
            store,
            clock,
            time_to_live_ms=self._settings.time_to_live_ms,
            keep_alive_ms=self._settings.keep_alive_ms,
            keeper=ports.keeper,
        )
        writer = FencedWriter(store, clock, prefix, self._settings.ambiguous_timeout_ms)
        self.write_times = writer.times
        """How long the store took for changes."""
        self.registration = HeldRegistration(
            broker_id,
            writer=writer,
            follower=self._follower,
            lease=self._lease,
            store_guard=self._store_guard,
            prefix=prefix,
        )
        self._reports = BrokerReports(self.registration, store, self._store_guard, prefix)
        self._controller = ControllerWork(self.registration, store, prefix, reconcile)
        self._running: list[asyncio.Task[None]] = []
        self._opened = False
        self.broker_id = broker_id
        self.cluster_id = ""
        self.nested: str | None = None
        """That another cluster's keys lie among this one's, or around them, in a sentence; known once opened."""

    # State

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """The registration that this broker holds; 0 while it holds none."""
        return self.registration.broker_epoch

    @property
    def refused(self) -> str:
        """Why this broker may not act on the store, for good; empty while it may."""
        return self.registration.refused

    @property
    def store_is_older(self) -> bool:
        """Whether the log directories have seen more of the cluster than the store has; known once registered."""
        return self._registrar.store_is_older

    @property
    def image(self) -> MetadataImage:
        """The cluster, as this broker sees it."""
        return self._follower.image

    @property
    def is_controller(self) -> bool:
        """Whether the image shows this broker as controller. A write finds out whether that still holds."""
        return self.registration.is_controller

    @property
    def fenced_from_ms(self) -> int:
        """When this broker is fenced (monotonic), unless its lease is renewed, or its image shown to be young, before that."""
        age_ms = self._settings.image_age_ms
        alive_until_ms = self._lease.alive_until_ms
        return min(alive_until_ms, self._follower.shown_ms + age_ms) if age_ms else alive_until_ms

    @property
    def is_fenced(self) -> bool:
        """Whether the store may already have given up this broker, or its image may be too old to act on.

        Ask at the moment of each answer: a process may sleep.
        """
        return self.registration.broker_epoch == 0 or self._clock.monotonic_ms() >= self.fenced_from_ms

    @property
    def wants_to_stop(self) -> bool:
        """Whether a controlled shutdown has begun here. Others may see that before this broker's image does."""
        return self._reports.stops

    def keep(self, make_keeper: Callable[[MetadataCopy], CopyKeeper]) -> None:
        """Have all that is followed written down before it is acted upon.

        `make_keeper` gets what is known, which goes on changing.
        """
        self._follower.keeper = make_keeper(self._follower.copy)

    def on_image(self, listener: ImageListener) -> None:
        """Call `listener(old, new, delta)` in the loop whenever the image changes, in the order of registration."""
        self._follower.on_image(listener)

    def on_registration(self, listener: Callable[[], None]) -> None:
        """Call `listener()` in the loop whenever `broker_epoch` has become another: lost, it is 0; then a new one."""
        self.registration.on_change(listener)

    # Life

    async def open(self, cluster_id: str | None = None, remembered: Mapping[str, MetadataCopy] | None = None) -> str:
        """Read the image and agree on the cluster's id: `cluster_id` if the store has none yet, or a random one.

        Returns it.
        `remembered` is what log directories know of the metadata, by path: a store that can't be a later state of that is refused.
        Does not register the broker; `start` does. Errors: InconsistentClusterError, UnavailableError, AmbiguousError.
        """
        if self._opened and cluster_id is None:
            return self.cluster_id
        try:
            return await self._open(cluster_id, remembered or {})
        except InconsistentClusterError as error:
            await self.registration.refuse(error)
            raise

    async def _open(self, cluster_id: str | None, remembered: Mapping[str, MetadataCopy]) -> str:
        if not self._opened:
            await self._follower.read()
            await self._store_guard.check(remembered)
        known = self.cluster_id or self.image.cluster_id
        if not known:
            known = await self._store_guard.claim_cluster_id(cluster_id or topic_id_text(self._random.randbytes(16)))
        if cluster_id is not None and cluster_id != known:
            raise OtherClusterError(
                f"the metadata store belongs to cluster {known}, the log directories to {cluster_id}"
            )
        self.cluster_id = known
        if not self._opened:
            self.nested = await self._store_guard.check_prefix()
            await self._store_guard.begin()
            self._opened = True
        return known

    async def start(
        self,
        registration: BrokerRegistration,
        directories: LogDirectories | None = None,
        offline: Replicas | None = None,
        *,
        adopts: bool = False,
    ) -> None:
        """Register, become controller if there is none, bring the image up to date, and keep all that so until `close`.

        Returns when the image shows this registration and what `reconcile` wanted. After an error only `close` may be
        called.
        `directories` are those whose locks are held; `offline` are replicas in others, which failed. `adopts`: see `Registrar.begin`.
        Errors: those of `Registrar.register` and of `open`, and whatever keeps the controller's work from being done in
        time.
        """
        await self.open()
        self._registrar.begin(
            registration, self._random.randbytes(16).hex(), directories or NoDirectories(), adopts=adopts
        )
        self._reports.offline = offline or {}
        self._spawn(self._follower.follow, "follow")
        give_up_ms = self._clock.monotonic_ms() + self._settings.registration_timeout_ms
        await self._register(give_up_ms)
        self._spawn(self._hold_lease, "lease")
        self._spawn(self._lease.tick, "tick")
        self._spawn(self._reports.report, "reports")
        if self._settings.image_age_ms:
            self._spawn(self._follower.prove_age, "age")
        await self.wait_for(self.broker_epoch)
        retry = Retry()
        while (error := await self._controller.attempt()) is not None:
            if self._clock.monotonic_ms() >= give_up_ms:
                raise error
            await retry.wait()
        self._spawn(self._controller.run, "controller")

    def begin_controlled_shutdown(self) -> None:
        """Have the cluster know that this broker wants to stop: the controller moves its leaderships, and nothing new is given to it."""
        self._reports.begin_controlled_shutdown()

    def set_offline(self, replicas: Replicas) -> None:
        """Write, as soon as the store can be reached, that exactly these replicas can't be served here."""
        self._reports.set_offline(replicas)

    def wake_controller(self) -> None:
        """Have `reconcile` asked soon, if this broker is controller: something else than brokers has changed that it cares for."""
        self._controller.wake()

    async def close(self) -> None:
        """Leave the cluster: stop following, end the lease. The store stays open."""
        lease = self._lease.close()
        self._follower.end(f"the session of broker {self.broker_id} is closed")
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        self.registration.close()
        if lease != NO_LEASE and not self.refused:
            with suppress(UnavailableError, AmbiguousError, InconsistentClusterError):
                await self._store.lease_revoke(lease)

    def _spawn(self, endless: Callable[[], Coroutine[object, object, None]], name: str) -> None:
        self._running.append(self._tasks.spawn(self._guard(endless), name=f"metadata-{name}-{self.broker_id}"))

    async def _guard(self, endless: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run one of the session's endless coroutines. When it ends, so do all waits for a newer image."""
        try:
            await endless()
        except InconsistentClusterError as error:
            await self.registration.refuse(error)
            raise
        finally:
            self._follower.end(f"the session of broker {self.broker_id} is over")

    # Writing

    async def commit(self, plan: ChangePlan) -> Revision:
        """Make the steps of `plan`, fenced. Returns the revision of the last; `wait_for` it to see it in the image.

        Errors: FencedError, NotControllerError, ConflictError, UnavailableError: this step was not made, those before
        it were. AmbiguousError: the store could not be asked in time what became of it.
        """
        return await self.registration.commit(plan)

    async def allocate_producer_ids(self) -> range:
        """Take a block of unused producer ids. Errors: FencedError, UnavailableError."""
        return await self.registration.allocate_producer_ids()

    async def wait_for(self, revision: Revision) -> None:
        """Return when the image shows `revision`, one that changed a key under the prefix.

        Errors: SessionError when the session closes.
        """
        await self._follower.wait_for(revision)

    # Registration and lease

    async def _register(self, give_up_ms: int) -> None:
        if self.refused:
            raise InconsistentClusterError(self.refused)
        try:
            await self._store_guard.check_connection()
            registered = await self._registrar.register(give_up_ms, self._reports.offline)
        except InconsistentClusterError as error:
            await self.registration.refuse(error)
            raise
        self._lease.begin(registered.lease, registered.sent_ms)
        self._follower.note_revision(registered.epoch, registered.sent_ms)
        self.registration.set_epoch(registered.epoch)
        self._reports.wake()
        self._check_registration()

    async def _hold_lease(self) -> None:
        """Renew the lease; when it is lost, register again as a broker that knows nothing."""
        while True:
            with suppress(LeaseGoneError):
                await self._lease.renew_until_lost(self._store_guard.check_connection, self._reports.wake)
            self.registration.set_epoch(0)
            while self.broker_epoch == 0:
                with suppress(UnavailableError, LeaseGoneError, AmbiguousError):
                    await self._register(self._clock.monotonic_ms() + self._settings.registration_timeout_ms)
            self._controller.wake()

    def _check_registration(self) -> None:
        """Be fenced at once when an image that could show our registration doesn't."""
        if self.broker_epoch == 0 or self.image.revision < self.broker_epoch:
            return
        if self.image.broker_epoch(self.broker_id) != self.broker_epoch:
            self.registration.set_epoch(0)
            self._lease.lost.set()

    # Image

    def _on_image(self, _old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """The first to see an image: what mustn't be acted upon goes no further. Errors: InconsistentClusterError."""
        if self._opened:
            self._store_guard.check_image(new)
        self._check_registration()
        if delta.brokers_changed or delta.controller_changed:
            self._controller.wake()
