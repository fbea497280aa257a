"""A broker's session with the cluster: registration, lease, the image it follows, and writes that are fenced.

One lease carries the broker's registration and, if it has it, the controller's key; the revision of the registration is the broker
epoch. Every write compares that epoch, and a controller's write also the revision of the controller's key: a broker that was taken
for dead, or a controller that was deposed, is stopped inside the store and not by its own good manners.

Guards: the image never goes back; a broker whose lease may have ended takes itself for fenced before the store does, and so does one that
can't show how young its image is; an answer that was lost is looked up, never guessed.

Does not do: the steps of a registration (`registration`), what should be written (`replication/controller` decides, handed in as
`reconcile`), closing the store.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.broker_image import Replicas, encode_replicas
from lowtide.metadata.changes import FENCES, ChangePlan, Step
from lowtide.metadata.errors import (
    ConflictError,
    FencedError,
    InconsistentClusterError,
    NotControllerError,
    OtherClusterError,
    StoreWentBackError,
)
from lowtide.metadata.image_follower import ImageFollower
from lowtide.metadata.lease import HeldLease
from lowtide.metadata.records import ControllerRecord, encode
from lowtide.metadata.registration import BrokerRegistration, LogDirectories, NoDirectories, Registrar
from lowtide.metadata.store import (
    ABSENT,
    NO_LEASE,
    AmbiguousError,
    Compare,
    Get,
    LeaseGoneError,
    MetadataStore,
    Put,
    Revision,
    UnavailableError,
)
from lowtide.metadata.store_guard import StoreGuard
from lowtide.metadata.writer import FencedWriter, Retry
from lowtide.protocol.types import topic_id_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping

    from lowtide.metadata.image import ImageDelta, MetadataImage
    from lowtide.metadata.image_follower import CopyKeeper, ImageListener
    from lowtide.metadata.lease_keeper import LeaseKeeper
    from lowtide.metadata.metadata_copy import MetadataCopy
    from lowtide.protocol.types import BrokerEpoch, BrokerId
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry

    Reconcile = Callable[[MetadataImage], ChangePlan]


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


class MetadataSession:
    """One broker's session. Used from one event loop."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        store: MetadataStore,
        clock: Clock,
        tasks: TaskRegistry,
        random: Random,
        broker_id: BrokerId,
        settings: SessionSettings | None = None,
        reconcile: Reconcile | None = None,
        keeper: LeaseKeeper | None = None,
    ) -> None:
        """`reconcile` says, whenever brokers came or went while this one is controller, what must be changed; it may be asked often.

        `keeper` renews the lease while the loop is held. It is closed with the session.
        """
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._random = random
        self._settings = settings or SessionSettings()
        self._prefix = self._settings.prefix
        self._reconcile = reconcile
        self._writer = FencedWriter(store, clock, self._prefix, self._settings.ambiguous_timeout_ms)
        self._follower = ImageFollower(
            store=store, clock=clock, prefix=self._prefix, age_ms=self._settings.image_age_ms, pause_ms=self._settings.keep_alive_ms
        )
        self._follower.on_image(self._on_image)
        self._registrar = Registrar(
            store=store,
            clock=clock,
            prefix=self._prefix,
            broker_id=broker_id,
            time_to_live_ms=self._settings.time_to_live_ms,
            follower=self._follower,
        )
        self._store_guard = StoreGuard(store, self._follower, self._prefix, broker_id, random, clock)
        self._lease = HeldLease(
            store, clock, time_to_live_ms=self._settings.time_to_live_ms, keep_alive_ms=self._settings.keep_alive_ms, keeper=keeper
        )
        self._offline: Replicas = {}
        self._stops = False
        self._wishes = asyncio.Event()
        self._controller_work = asyncio.Event()
        self._registration_listeners: list[Callable[[], None]] = []
        self._running: list[asyncio.Task[None]] = []
        self._opened = False
        self.broker_id = broker_id
        self.broker_epoch: BrokerEpoch = 0
        self.cluster_id = ""
        self.refused = ""
        """Why this broker may not act on the store, for good; empty while it may."""

    # State

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
        return self.broker_epoch != 0 and self.image.controller_id == self.broker_id

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
        return self.broker_epoch == 0 or self._clock.monotonic_ms() >= self.fenced_from_ms

    def keep(self, make_keeper: Callable[[MetadataCopy], CopyKeeper]) -> None:
        """Have all that is followed written down before it is acted upon. `make_keeper` gets what is known, which goes on changing."""
        self._follower.keeper = make_keeper(self._follower.copy)

    def on_image(self, listener: ImageListener) -> None:
        """Call `listener(old, new, delta)` in the loop whenever the image changes, in the order of registration."""
        self._follower.on_image(listener)

    def on_registration(self, listener: Callable[[], None]) -> None:
        """Call `listener()` in the loop whenever `broker_epoch` has become another: lost, it is 0; then a new one."""
        self._registration_listeners.append(listener)

    # Life

    async def open(self, cluster_id: str | None = None, remembered: Mapping[str, MetadataCopy] | None = None) -> str:
        """Read the image and agree on the cluster's id: `cluster_id` if the store has none yet, or a random one. Returns it.

        `remembered` is what log directories know of the metadata, by path: a store that can't be a later state of that is refused.
        Does not register the broker; `start` does. Errors: InconsistentClusterError, UnavailableError, AmbiguousError.
        """
        if self._opened and cluster_id is None:
            return self.cluster_id
        try:
            return await self._open(cluster_id, remembered or {})
        except InconsistentClusterError as error:
            await self._on_refused(error)
            raise

    async def _open(self, cluster_id: str | None, remembered: Mapping[str, MetadataCopy]) -> str:
        if not self._opened:
            await self._follower.read()
            await self._store_guard.check(remembered)
        known = self.cluster_id or self.image.cluster_id
        if not known:
            known = await self._store_guard.claim_cluster_id(cluster_id or topic_id_text(self._random.randbytes(16)))
        if cluster_id is not None and cluster_id != known:
            raise OtherClusterError(f"the metadata store belongs to cluster {known}, the log directories to {cluster_id}")
        self.cluster_id = known
        if not self._opened:
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

        Returns when the image shows this registration and what `reconcile` wanted. After an error only `close` may be called.
        `directories` are those whose locks are held; `offline` are replicas in others, which failed. `adopts`: see `Registrar.begin`.
        Errors: those of `Registrar.register` and of `open`, and whatever keeps the controller's work from being done in time.
        """
        await self.open()
        self._registrar.begin(registration, self._random.randbytes(16).hex(), directories or NoDirectories(), adopts=adopts)
        self._offline = offline or {}
        self._spawn(self._follower.follow, "follow")
        give_up_ms = self._clock.monotonic_ms() + self._settings.registration_timeout_ms
        await self._register(give_up_ms)
        self._spawn(self._hold_lease, "lease")
        self._spawn(self._lease.tick, "tick")
        self._spawn(self._tell_wishes, "wishes")
        if self._settings.image_age_ms:
            self._spawn(self._follower.prove_age, "age")
        await self.wait_for(self.broker_epoch)
        retry = Retry()
        while (error := await self._try_controller_work()) is not None:
            if self._clock.monotonic_ms() >= give_up_ms:
                raise error
            await retry.wait()
        self._spawn(self._control, "controller")

    def begin_controlled_shutdown(self) -> None:
        """Have the cluster know that this broker wants to stop: the controller moves its leaderships, and nothing new is given to it."""
        self._stops = True
        self._wishes.set()

    def set_offline(self, replicas: Replicas) -> None:
        """Write, as soon as the store can be reached, that exactly these replicas can't be served here."""
        if replicas != self._offline:
            self._offline = replicas
            self._wishes.set()

    def wake_controller(self) -> None:
        """Have `reconcile` asked soon, if this broker is controller: something else than brokers has changed that it cares for."""
        self._controller_work.set()

    async def close(self) -> None:
        """Leave the cluster: stop following, end the lease. The store stays open."""
        lease = self._lease.close()
        self._follower.end(f"the session of broker {self.broker_id} is closed")
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        self.broker_epoch = 0
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
            await self._on_refused(error)
            raise
        finally:
            self._follower.end(f"the session of broker {self.broker_id} is over")

    @asynccontextmanager
    async def _refusing(self) -> AsyncGenerator[None, None]:
        """A write that finds out that the store went back is fenced. Errors: FencedError."""
        try:
            yield
        except InconsistentClusterError as error:
            await self._on_refused(error)
            raise FencedError(str(error)) from error

    async def _on_refused(self, error: InconsistentClusterError) -> None:
        """Act no more, from this moment on; have the others stop too where the store is to blame."""
        if self.refused:
            return
        self.refused = str(error)
        self._set_epoch(0)
        if isinstance(error, StoreWentBackError):
            await self._store_guard.suspend(error.reason)

    # Writing

    async def commit(self, plan: ChangePlan) -> Revision:
        """Make the steps of `plan`, fenced. Returns the revision of the last; `wait_for` it to see it in the image.

        Errors: FencedError, NotControllerError, ConflictError, UnavailableError: this step was not made, those before it were.
        AmbiguousError: the store could not be asked in time what became of it.
        """
        fences = self._fences(needs_controller=plan.needs_controller)
        async with self._refusing():
            return await self._writer.write(plan.steps, fences, self.image.revision)

    async def allocate_producer_ids(self) -> range:
        """Take a block of unused producer ids. Errors: FencedError, UnavailableError."""
        async with self._refusing():
            return await self._writer.allocate_producer_ids(self._fences(needs_controller=False))

    async def wait_for(self, revision: Revision) -> None:
        """Return when the image shows `revision`, one that changed a key under the prefix. Errors: SessionError when the session closes."""
        await self._follower.wait_for(revision)

    def _fences(self, *, needs_controller: bool) -> list[Compare]:
        if self.broker_epoch == 0:
            message = self.refused or f"broker {self.broker_id} is not registered"
            raise FencedError(message)
        fences = [
            Compare(self._prefix + keys.broker(self.broker_id), "create", "==", self.broker_epoch),
            Compare(self._prefix + keys.SUSPENSION, "create", "==", ABSENT),
        ]
        if needs_controller:
            if not self.is_controller:
                message = f"broker {self.broker_id} is not the controller, {self.image.controller_id} is"
                raise NotControllerError(message)
            fences.append(Compare(self._prefix + keys.CONTROLLER, "create", "==", self.image.controller_revision))
        assert len(fences) <= FENCES
        return fences

    # Registration and lease

    async def _register(self, give_up_ms: int) -> None:
        if self.refused:
            raise InconsistentClusterError(self.refused)
        try:
            await self._store_guard.check_connection()
            registered = await self._registrar.register(give_up_ms, self._offline)
        except InconsistentClusterError as error:
            await self._on_refused(error)
            raise
        self._lease.begin(registered.lease, registered.sent_ms)
        self._follower.note_revision(registered.epoch, registered.sent_ms)
        self._set_epoch(registered.epoch)
        self._wishes.set()
        self._check_registration()

    def _set_epoch(self, epoch: BrokerEpoch) -> None:
        if epoch == 0 or self.refused:
            epoch = 0
            self._lease.end()
        if epoch != self.broker_epoch:
            self.broker_epoch = epoch
            for listener in self._registration_listeners:
                listener()

    async def _hold_lease(self) -> None:
        """Renew the lease; when it is lost, register again as a broker that knows nothing."""
        while True:
            with suppress(LeaseGoneError):
                await self._lease.renew_until_lost(self._store_guard.check_connection, self._wishes.set)
            self._set_epoch(0)
            while self.broker_epoch == 0:
                with suppress(UnavailableError, LeaseGoneError, AmbiguousError):
                    await self._register(self._clock.monotonic_ms() + self._settings.registration_timeout_ms)
            self._controller_work.set()

    def _check_registration(self) -> None:
        """Be fenced at once when an image that could show our registration doesn't."""
        if self.broker_epoch == 0 or self.image.revision < self.broker_epoch:
            return
        if self.image.broker_epoch(self.broker_id) != self.broker_epoch:
            self._set_epoch(0)
            self._lease.lost.set()

    async def _tell_wishes(self) -> None:
        """Write what this registration has to tell besides itself, whenever that changes."""
        retry = Retry()
        while True:
            await self._wishes.wait()
            self._wishes.clear()
            try:
                await self._write_wishes()
            except (ConflictError, FencedError, UnavailableError, AmbiguousError, LeaseGoneError):
                await retry.wait()
                self._wishes.set()
            else:
                retry = Retry()

    async def _write_wishes(self) -> None:
        if self.broker_epoch == 0:
            return  # A new registration brings them along, or writes them then.
        written = self.image.offline_replicas.get(self.broker_id, {})
        if written != self._offline:
            await self._tell(keys.offline(self.broker_id), encode(encode_replicas(self._offline)))
        if self._stops:
            await self._tell(keys.shutdown(self.broker_id), encode(self.broker_epoch))
        if (witness := self._store_guard.witness()) is not None:
            await self.commit(ChangePlan((witness,), needs_controller=False))

    async def _tell(self, key: bytes, value: bytes) -> None:
        """Have a key say this, with our lease. Only one process writes it; the comparison is for its own attempts that come late."""
        pair = await self._store.get(self._prefix + key)
        if pair is not None and (pair.value, pair.lease) == (value, self._lease.id):
            return
        unchanged = Compare(key, "modify", "==", ABSENT if pair is None else pair.modify_revision)
        await self.commit(ChangePlan((Step((Put(key, value, self._lease.id),), (unchanged,)),), needs_controller=False))

    # Image

    def _on_image(self, _old: MetadataImage, new: MetadataImage, delta: ImageDelta) -> None:
        """The first to see an image: what mustn't be acted upon goes no further. Errors: InconsistentClusterError."""
        if self._opened:
            self._store_guard.check_image(new)
        self._check_registration()
        if delta.brokers_changed or delta.controller_changed:
            self._controller_work.set()

    # Controller

    async def _control(self) -> None:
        """Whenever brokers or the controller change: become controller if there is none, and do its work."""
        retry = Retry()
        while True:
            await self._controller_work.wait()
            self._controller_work.clear()
            if await self._try_controller_work() is None:
                retry = Retry()
            else:
                self._controller_work.set()  # Compares the whole image with what should be, so it may just be done again.
                await retry.wait()

    async def _try_controller_work(self) -> Exception | None:
        """Do the controller's work. Returns what went wrong, if a newer image or a store that answers can mend it."""
        try:
            await self._do_controller_work()
        except (ConflictError, FencedError, NotControllerError, UnavailableError, AmbiguousError, LeaseGoneError) as error:
            return error
        return None

    async def _do_controller_work(self) -> None:
        if self.broker_epoch == 0:
            return
        if self.image.controller_id < 0:
            await self._elect_self()
        while self._reconcile is not None and self.is_controller:
            plan = self._reconcile(self.image)
            if plan.is_empty:
                return
            await self.wait_for(await self.commit(plan))

    async def _elect_self(self) -> None:
        """Take the controller's key if it is free. Returns when the image shows who has it."""
        epoch_key, controller_key = self._prefix + keys.CONTROLLER_EPOCH, self._prefix + keys.CONTROLLER
        current = await self._store.get(epoch_key)
        epoch = 1 if current is None else int(current.value) + 1
        compares = [
            Compare(controller_key, "create", "==", ABSENT),
            Compare(epoch_key, "modify", "==", ABSENT if current is None else current.modify_revision),
            *self._fences(needs_controller=False),
        ]
        record = encode(ControllerRecord(self.broker_id, epoch))
        result = await self._store.transact(
            compares, [Put(controller_key, record, self._lease.id), Put(epoch_key, b"%d" % epoch)], [Get(controller_key)]
        )
        if result.succeeded:
            await self.wait_for(result.revision)
        elif result.gets[0] is not None:
            await self.wait_for(result.gets[0].create_revision)
