"""A broker's session with the cluster: registration, lease, image, and fenced writes.

One lease holds the broker's registration and, if it is the controller, the controller's key. The revision of the
registration is the broker epoch. The session keeps the lease and the image, and runs its tasks while it is open.

Guards: the image never goes back; a broker whose lease may have ended considers itself fenced before the store does,
and so does one that can't prove the age of its image.

`registration` has the steps of a registration, `held_registration` fences writes, `broker_reports` reports what a
broker can't serve, `controller_task` runs the controller. The session does not close the store.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata.broker_image import Replicas
from lowtide.metadata.broker_reports import BrokerReports
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.controller_task import ControllerTask, Reconcile
from lowtide.metadata.errors import InconsistentClusterError, OtherClusterError
from lowtide.metadata.held_registration import HeldRegistration
from lowtide.metadata.image_follower import ImageFollower
from lowtide.metadata.lease import HeldLease
from lowtide.metadata.registration import BrokerRegistration, NoDirectories, Registrar, RegistrationDirectories
from lowtide.metadata.store import NO_LEASE, AmbiguousError, LeaseGoneError, MetadataStore, Revision, UnavailableError
from lowtide.metadata.store_guard import StoreGuard
from lowtide.metadata.writer import FencedWriter, StoreBackoff
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
    """Settings of a session.

    `registration_timeout_ms`: how long it waits for a predecessor's lease to end. `image_age_ms`: the permitted age of
    the image; 0 if the image can't lag behind the store.
    """

    prefix: bytes = b"/lowtide/"
    time_to_live_ms: int = 4000
    keep_alive_ms: int = 500
    registration_timeout_ms: int = 30_000
    ambiguous_timeout_ms: int = 10_000
    image_age_ms: int = 0


class SessionPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The ports of a session. `keeper` renews the lease while the loop is blocked; it is closed with the session."""

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
        """`reconcile` plans the controller's work while this broker is controller. It may be called often."""
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
        self.image: MetadataImage = self._follower.image
        self.registrar = Registrar(
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
        """How long changes took in the store."""
        self.registration = HeldRegistration(
            broker_id,
            writer=writer,
            follower=self._follower,
            lease=self._lease,
            store_guard=self._store_guard,
            prefix=prefix,
        )
        self.reports = BrokerReports(self.registration, store, self._store_guard, prefix)
        self.controller = ControllerTask(self.registration, store, prefix, reconcile)
        self._running: list[asyncio.Task[None]] = []
        self._opened = False
        self.broker_id = broker_id
        self.cluster_id = ""
        self.nested: str | None = None
        """A sentence about another cluster's keys inside or around this prefix; known once opened."""

    @property
    def broker_epoch(self) -> BrokerEpoch:
        """The registration that this broker holds; 0 while it holds none."""
        return self.registration.broker_epoch

    @property
    def refused(self) -> str:
        """Why this broker may never act on the store again; empty while it may."""
        return self.registration.refused

    @property
    def is_controller(self) -> bool:
        """Whether the image shows this broker as controller. A write verifies that."""
        return self.registration.is_controller

    @property
    def fenced_from_ms(self) -> int:
        """When this broker is fenced (monotonic), unless its lease is renewed or its image proved recent before."""
        age_ms = self._settings.image_age_ms
        alive_until_ms = self._lease.alive_until_ms
        return min(alive_until_ms, self._follower.shown_ms + age_ms) if age_ms else alive_until_ms

    @property
    def is_fenced(self) -> bool:
        """Whether the store may have ended this registration, or the image may be too old to act on.

        Check before each answer, because a process may be suspended at any time.
        """
        return self.registration.broker_epoch == 0 or self._clock.monotonic_ms() >= self.fenced_from_ms

    def keep(self, make_keeper: Callable[[MetadataCopy], CopyKeeper]) -> None:
        """Writes everything down before it is acted upon, through the keeper made from the current state."""
        self._follower.keeper = make_keeper(self._follower.copy)

    def on_image(self, listener: ImageListener) -> None:
        """Calls `listener(old, new, delta)` in the loop whenever the image changes, in the order of registration."""
        self._follower.on_image(listener)

    async def open(self, cluster_id: str | None = None, remembered: Mapping[str, MetadataCopy] | None = None) -> str:
        """Reads the image and settles the cluster's id: `cluster_id` if the store has none, or a random one.

        Returns the id. `remembered` has the metadata that log directories remember, by path: a store that can't be a
        later state is refused. `start` registers the broker. Errors: InconsistentClusterError, UnavailableError,
        AmbiguousError.
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
        directories: RegistrationDirectories | None = None,
        offline: Replicas | None = None,
        *,
        adopts: bool = False,
    ) -> None:
        """Registers, becomes controller if there is none, and keeps all that until `close`.

        Returns when the image shows this registration and the work of `reconcile` is done. After an error only `close`
        may be called. `directories` are locked by this process; `offline` are replicas in failed ones. `adopts`: see
        `Registrar.begin`. Errors: those of `Registrar.register` and of `open`, and any that prevents the controller's
        work in time.
        """
        await self.open()
        self.registrar.begin(
            registration, self._random.randbytes(16).hex(), directories or NoDirectories(), adopts=adopts
        )
        self.reports.offline = offline or {}
        self._spawn(self._follower.follow, "follow")
        give_up_ms = self._clock.monotonic_ms() + self._settings.registration_timeout_ms
        await self._register(give_up_ms)
        self._spawn(self._hold_lease, "lease")
        self._spawn(self._lease.tick, "tick")
        self._spawn(self.reports.report, "reports")
        if self._settings.image_age_ms:
            self._spawn(self._follower.prove_age, "age")
        await self.wait_for(self.broker_epoch)
        backoff = StoreBackoff()
        while (error := await self.controller.attempt()) is not None:
            if self._clock.monotonic_ms() >= give_up_ms:
                raise error
            await backoff.wait()
        self._spawn(self.controller.run, "controller")

    async def close(self) -> None:
        """Leaves the cluster: stops following and ends the lease. The store stays open."""
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
        """Runs one of the session's tasks. When it ends, so do all waits for a newer image."""
        try:
            await endless()
        except InconsistentClusterError as error:
            await self.registration.refuse(error)
            raise
        finally:
            self._follower.end(f"the session of broker {self.broker_id} is over")

    async def commit(self, plan: ChangePlan) -> Revision:
        """Writes the steps of `plan`, fenced. Returns the revision of the last; `wait_for` it to see it in the image.

        Errors: FencedError, NotControllerError, ConflictError, UnavailableError: this step was not written, earlier
        ones were. AmbiguousError: the outcome could not be found out in time.
        """
        return await self.registration.commit(plan)

    async def allocate_producer_ids(self) -> range:
        """Allocates a block of unused producer ids. Errors: FencedError, UnavailableError."""
        return await self.registration.allocate_producer_ids()

    async def wait_for(self, revision: Revision) -> None:
        """Waits until the image shows `revision`, which must have changed a key under the prefix.

        Errors: SessionError if the session closes.
        """
        await self._follower.wait_for(revision)

    async def _register(self, give_up_ms: int) -> None:
        if self.refused:
            raise InconsistentClusterError(self.refused)
        try:
            await self._store_guard.check_connection()
            registered = await self.registrar.register(give_up_ms, self.reports.offline)
        except InconsistentClusterError as error:
            await self.registration.refuse(error)
            raise
        self._lease.begin(registered.lease, registered.sent_ms)
        self._follower.note_revision(registered.epoch, registered.sent_ms)
        self.registration.set_epoch(registered.epoch)
        self.reports.wake()
        self._check_registration()

    async def _hold_lease(self) -> None:
        """Renews the lease; after its loss, registers again as a broker without any state."""
        while True:
            with suppress(LeaseGoneError):
                await self._lease.renew_until_lost(self._store_guard.check_connection, self.reports.wake)
            self.registration.set_epoch(0)
            while self.broker_epoch == 0:
                with suppress(UnavailableError, LeaseGoneError, AmbiguousError):
                    await self._register(self._clock.monotonic_ms() + self._settings.registration_timeout_ms)
            self.controller.wake()

    def _check_registration(self) -> None:
        """Fences this broker at once if an image that could show its registration doesn't."""
        if self.broker_epoch == 0 or self.image.revision < self.broker_epoch:
            return
        if self.image.broker_epoch(self.broker_id) != self.broker_epoch:
            self.registration.set_epoch(0)
            self._lease.lost.set()

    def _on_image(self, _old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """Checks each image before any other listener sees it. Errors: InconsistentClusterError."""
        self.image = new
        if self._opened:
            self._store_guard.check_image(new)
        self._check_registration()
        if delta.brokers_changed or delta.controller_changed:
            self.controller.wake()
