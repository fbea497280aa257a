"""A broker's session with the cluster: registration, lease, the image it follows, and writes that are fenced.

One lease carries the broker's registration and, if it has it, the controller's key; the revision of the registration is the broker
epoch. Every write compares that epoch, and a controller's write also the revision of the controller's key: a broker that was taken
for dead, or a controller that was deposed, is stopped inside the store and not by its own good manners.

Guards: the image never goes back; a broker whose lease may have ended takes itself for fenced before the store does; an answer that
was lost is looked up, never guessed.

Does not do: what should be written (`replication/controller` decides, handed in as `reconcile`), closing the store.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES
from lowtide.metadata.errors import (
    ConflictError,
    DuplicateBrokerError,
    FencedError,
    InconsistentClusterError,
    NotControllerError,
    SessionError,
    SoleBrokerError,
)
from lowtide.metadata.image import ImageDelta, MetadataImage, difference
from lowtide.metadata.records import BrokerRecord, ControllerRecord, Listener, encode
from lowtide.metadata.store import (
    ABSENT,
    NO_LEASE,
    AmbiguousError,
    CompactedError,
    Compare,
    Get,
    LeaseGoneError,
    LeaseId,
    MetadataStore,
    Put,
    Revision,
    UnavailableError,
)
from lowtide.metadata.writer import FencedWriter, Retry
from lowtide.protocol.types import topic_id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine

    from lowtide.metadata.changes import ChangePlan
    from lowtide.protocol.types import BrokerEpoch, BrokerId
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry

    ImageListener = Callable[[MetadataImage, MetadataImage, ImageDelta], None]
    Reconcile = Callable[[MetadataImage], ChangePlan]

FENCE_PART: Final = 0.8
"""The part of the lease's time after which a broker that could not renew takes itself for fenced. The store counts from when it
received the renewal, the broker from when it sent it, so with clocks of about the same rate the broker always stops first."""


class SessionSettings(msgspec.Struct, frozen=True):
    """How a session behaves.

    `registration_timeout_ms`: how long it waits for a predecessor's lease to end. `sole_broker`: no second broker may register, and
    this one doesn't beside another.
    """

    prefix: bytes = b"/lowtide/"
    time_to_live_ms: int = 6000
    keep_alive_ms: int = 1000
    registration_timeout_ms: int = 30_000
    ambiguous_timeout_ms: int = 10_000
    sole_broker: bool = False


class BrokerRegistration(msgspec.Struct, frozen=True):
    """What a broker tells of itself: advertised listeners, and its rack."""

    listeners: tuple[Listener, ...]
    rack: str | None = None


class MetadataSession:
    """One broker's session. Used from one event loop."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: Clock,
        tasks: TaskRegistry,
        random: Random,
        broker_id: BrokerId,
        settings: SessionSettings | None = None,
        reconcile: Reconcile | None = None,
    ) -> None:
        """`reconcile` says, whenever brokers came or went while this one is controller, what must be changed; it may be asked often."""
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._random = random
        self._settings = settings or SessionSettings()
        self._prefix = self._settings.prefix
        self._reconcile = reconcile
        self._writer = FencedWriter(store, clock, self._settings.prefix, self._settings.ambiguous_timeout_ms)
        self._registration = BrokerRegistration(())
        self._predecessors: frozenset[BrokerEpoch] = frozenset()
        self._incarnation = ""
        self._lease: LeaseId = NO_LEASE
        self._alive_until_ms = 0
        self._lost = asyncio.Event()
        self._controller_work = asyncio.Event()
        self._listeners: list[ImageListener] = []
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []
        self._running: list[asyncio.Task[None]] = []
        self._opened = False
        self._ended = ""
        self.broker_id = broker_id
        self.broker_epoch: BrokerEpoch = 0
        self.cluster_id = ""
        self.image = MetadataImage()

    # State

    @property
    def is_controller(self) -> bool:
        """Whether the image shows this broker as controller. A write finds out whether that still holds."""
        return self.broker_epoch != 0 and self.image.controller_id == self.broker_id

    @property
    def is_fenced(self) -> bool:
        """Whether the store may already have given up this broker. Ask at the moment of each answer: a process may sleep."""
        return self.broker_epoch == 0 or self._clock.monotonic_ms() >= self._alive_until_ms

    def on_image(self, listener: ImageListener) -> None:
        """Call `listener(old, new, delta)` in the loop whenever the image changes, in the order of registration."""
        self._listeners.append(listener)

    # Life

    async def open(self, cluster_id: str | None = None) -> str:
        """Read the image and agree on the cluster's id: `cluster_id` if the store has none yet, or a random one. Returns it.

        Does not register the broker; `start` does. Errors: InconsistentClusterError, UnavailableError, AmbiguousError; SoleBrokerError, so
        that a broker that would be refused touches none of its directories.
        """
        if not self._opened:
            self.image = await self._read_image()
            self._opened = True
        for other in self.image.brokers:
            self._check_sole(b"%d" % other)
        known = self.cluster_id or self.image.cluster_id
        if not known:
            known = await self._claim_cluster_id(cluster_id or topic_id_text(self._random.randbytes(16)))
        if cluster_id is not None and cluster_id != known:
            message = f"the metadata store belongs to cluster {known}, the log directories to {cluster_id}"
            raise InconsistentClusterError(message)
        self.cluster_id = known
        return known

    async def start(self, registration: BrokerRegistration, predecessors: Collection[BrokerEpoch] = ()) -> None:
        """Register, become controller if nobody is, bring the image up to date, and keep all that so until `close`.

        Returns when the image shows this registration and what `reconcile` wanted. After an error only `close` may be called.
        `predecessors`: epochs of earlier processes that are dead for certain, for this one holds the locks of their directories. A
        registration under one of them is ended; any other is waited for.

        Errors: DuplicateBrokerError, SoleBrokerError, those of `open`, and whatever keeps the controller's work from being done in time.
        """
        await self.open()
        self._registration = registration
        self._predecessors = frozenset(predecessors)
        self._incarnation = self._random.randbytes(16).hex()
        self._spawn(self._follow, "follow")
        give_up_ms = self._clock.monotonic_ms() + self._settings.registration_timeout_ms
        await self._register(give_up_ms)
        self._spawn(self._hold_lease, "lease")
        await self.wait_for(self.broker_epoch)
        retry = Retry()
        while (error := await self._try_controller_work()) is not None:
            if self._clock.monotonic_ms() >= give_up_ms:
                raise error
            await retry.wait()
        self._spawn(self._control, "controller")

    async def close(self) -> None:
        """Leave the cluster: stop following, end the lease. The store stays open."""
        self._end_waits("closed")
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        lease, self._lease, self.broker_epoch = self._lease, NO_LEASE, 0
        if lease != NO_LEASE:
            with suppress(UnavailableError, AmbiguousError):
                await self._store.lease_revoke(lease)

    def _spawn(self, endless: Callable[[], Coroutine[object, object, None]], name: str) -> None:
        self._running.append(self._tasks.spawn(self._guard(endless), name=f"metadata-{name}-{self.broker_id}"))

    async def _guard(self, endless: Callable[[], Coroutine[object, object, None]]) -> None:
        """Run one of the session's endless coroutines. When it ends, so do all waits for a newer image."""
        try:
            await endless()
        finally:
            self._end_waits("over")

    # Writing

    async def commit(self, plan: ChangePlan) -> Revision:
        """Make the steps of `plan`, fenced. Returns the revision of the last; `wait_for` it to see it in the image.

        Errors: FencedError, NotControllerError, ConflictError, UnavailableError: this step was not made, those before it were.
        AmbiguousError: the store could not be asked in time what became of it.
        """
        fences = self._fences(needs_controller=plan.needs_controller)
        return await self._writer.write(plan.steps, fences, self.image.revision)

    async def allocate_producer_ids(self) -> range:
        """Take a block of producer ids that nobody had before. Errors: FencedError, UnavailableError."""
        return await self._writer.allocate_producer_ids(self._fences(needs_controller=False))

    async def wait_for(self, revision: Revision) -> None:
        """Return when the image shows `revision`, one that changed a key under the prefix. Errors: SessionError when the session closes."""
        if self.image.revision < revision:
            if self._ended:
                raise SessionError(self._ended)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, waiter))
            await waiter

    def _fences(self, *, needs_controller: bool) -> list[Compare]:
        if self.broker_epoch == 0:
            message = f"broker {self.broker_id} is not registered"
            raise FencedError(message)
        fences = [Compare(self._prefix + keys.broker(self.broker_id), "create", "==", self.broker_epoch)]
        if needs_controller:
            if not self.is_controller:
                message = f"broker {self.broker_id} is not the controller, {self.image.controller_id} is"
                raise NotControllerError(message)
            fences.append(Compare(self._prefix + keys.CONTROLLER, "create", "==", self.image.controller_revision))
        assert len(fences) <= FENCES
        return fences

    async def _claim_cluster_id(self, wanted: str) -> str:
        key = self._prefix + keys.CLUSTER_ID
        try:
            result = await self._store.transact([Compare(key, "create", "==", ABSENT)], [Put(key, wanted.encode())], [Get(key)])
            pair = None if result.succeeded else result.gets[0]
        except AmbiguousError:
            pair = await self._store.get(key)
            if pair is None:
                raise
        return wanted if pair is None else pair.value.decode()

    # Registration and lease

    async def _register(self, give_up_ms: int) -> None:
        """Begin a lease and put this broker's key under it. Waits while a predecessor's lease lives.

        Errors: DuplicateBrokerError after `give_up_ms` (monotonic); SoleBrokerError at once.
        """
        key = self._prefix + keys.broker(self.broker_id)
        record = encode(BrokerRecord(self._incarnation, self._registration.listeners, self._registration.rack))
        taken = [key, self._prefix + keys.SOLE_BROKER] if self._settings.sole_broker else [key]
        values = [record, b"%d" % self.broker_id]
        sent_ms = self._clock.monotonic_ms()
        lease = await self._store.lease_grant(self._settings.time_to_live_ms)
        retry = Retry()
        while True:
            seen = self.image.revision
            with suppress(AmbiguousError):
                result = await self._store.transact(
                    [Compare(each, "create", "==", ABSENT) for each in taken],
                    [Put(each, value, lease) for each, value in zip(taken, values, strict=False)],
                    [Get(each) for each in taken],
                )
                self._check_progress(seen, result.revision)
                if result.succeeded:
                    return self._hold(lease, result.revision, sent_ms)
                pair = result.gets[0]
                if pair is not None and pair.lease == lease:  # An earlier attempt of ours, whose answer was lost.
                    return self._hold(lease, pair.create_revision, sent_ms)
                if pair is not None and pair.create_revision in self._predecessors:
                    await self._store.lease_revoke(pair.lease)
                    continue
                if (holder := result.gets[-1]) is not None:
                    self._check_sole(holder.value)
            if self._clock.monotonic_ms() >= give_up_ms:
                message = f"another broker with id {self.broker_id} is alive"
                raise DuplicateBrokerError(message)
            await retry.wait()
            sent_ms = self._clock.monotonic_ms()
            await self._store.lease_keep_alive(lease)

    def _check_sole(self, registered: bytes) -> None:
        if self._settings.sole_broker and registered != b"%d" % self.broker_id:
            message = (
                f"broker {registered.decode()} is registered in this metadata store, and broker {self.broker_id} can't join it: this "
                "version of Lowtide doesn't replicate between brokers yet"
            )
            raise SoleBrokerError(message)

    def _hold(self, lease: LeaseId, epoch: BrokerEpoch, sent_ms: int) -> None:
        self._lost.clear()
        self._lease, self.broker_epoch = lease, epoch
        self._renewed(sent_ms)
        self._check_registration(self.image)

    def _renewed(self, sent_ms: int) -> None:
        self._alive_until_ms = sent_ms + int(self._settings.time_to_live_ms * FENCE_PART)

    async def _hold_lease(self) -> None:
        """Renew the lease; when it is lost, register anew as a broker that knows nothing."""
        while True:
            with suppress(LeaseGoneError):
                await self._renew_until_lost()
            self.broker_epoch, self._alive_until_ms = 0, 0
            retry = Retry()
            while self.broker_epoch == 0:
                try:
                    await self._register(self._clock.monotonic_ms() + self._settings.registration_timeout_ms)
                except (UnavailableError, LeaseGoneError, AmbiguousError):
                    await retry.wait()
            self._controller_work.set()

    async def _renew_until_lost(self) -> None:
        """Returns when the image shows that our registration is gone. Errors: LeaseGoneError."""
        retry = Retry()
        wait_ms = self._settings.keep_alive_ms
        while not await _is_set_within(self._lost, wait_ms):
            sent_ms = self._clock.monotonic_ms()
            try:
                await self._store.lease_keep_alive(self._lease)
            except (UnavailableError, AmbiguousError):
                wait_ms = min(retry.next_ms(), self._settings.keep_alive_ms)
            else:
                self._renewed(sent_ms)
                retry, wait_ms = Retry(), self._settings.keep_alive_ms

    # Image

    async def _read_image(self) -> MetadataImage:
        pairs, revision = await self._store.range(self._prefix)
        self._check_progress(self.image.revision, revision)
        return MetadataImage.load(pairs, revision, prefix=self._prefix)

    def _check_progress(self, seen: Revision, revision: Revision) -> None:
        if revision < seen:
            message = f"the metadata store went back from revision {seen} to {revision}: was a backup restored?"
            raise InconsistentClusterError(message)

    async def _follow(self) -> None:
        """Apply every batch; after a gap read everything again, and tell the difference."""
        retry = Retry()
        while True:
            try:
                async with aclosing(self._store.watch(self._prefix, self.image.revision + 1)) as batches:
                    async for batch in batches:
                        retry = Retry()
                        self._show(*self.image.apply(batch, prefix=self._prefix))
            except CompactedError:
                await self._read_everything(retry)
            except UnavailableError:
                await retry.wait()

    async def _read_everything(self, retry: Retry) -> None:
        try:
            image = await self._read_image()
        except UnavailableError:
            await retry.wait()
        else:
            self._show(image, difference(self.image, image))

    def _show(self, image: MetadataImage, delta: ImageDelta) -> None:
        old, self.image = self.image, image
        if old.cluster_id not in {"", image.cluster_id}:
            message = f"the metadata store changed from cluster {old.cluster_id} to {image.cluster_id!r}"
            raise InconsistentClusterError(message)
        self._check_registration(image)
        for listener in self._listeners:
            listener(old, image, delta)
        if delta.brokers_changed or delta.controller_changed:
            self._controller_work.set()
        due = [waiter for revision, waiter in self._waiting if revision <= image.revision]
        if due:
            self._waiting = [entry for entry in self._waiting if entry[0] > image.revision]
            for waiter in due:
                if not waiter.done():
                    waiter.set_result(None)

    def _end_waits(self, reason: str) -> None:
        self._ended = self._ended or f"the session of broker {self.broker_id} is {reason}"
        for _, waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(SessionError(self._ended))
                waiter.exception()  # Whoever waited may be dead.
        self._waiting.clear()

    def _check_registration(self, image: MetadataImage) -> None:
        """Be fenced at once when an image that could show our registration doesn't."""
        if image.revision < self.broker_epoch or self.broker_epoch == 0:
            return
        broker = image.brokers.get(self.broker_id)
        if broker is None or broker.epoch != self.broker_epoch:
            self.broker_epoch, self._alive_until_ms = 0, 0
            self._lost.set()

    # Controller

    async def _control(self) -> None:
        """Whenever brokers or the controller change: become controller if nobody is, and do its work."""
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
            compares, [Put(controller_key, record, self._lease), Put(epoch_key, b"%d" % epoch)], [Get(controller_key)]
        )
        if result.succeeded:
            await self.wait_for(result.revision)
        elif result.gets[0] is not None:
            await self.wait_for(result.gets[0].create_revision)


async def _is_set_within(event: asyncio.Event, wait_ms: int) -> bool:
    try:
        async with asyncio.timeout(wait_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False
