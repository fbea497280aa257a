"""The registration that a broker holds, and writes in its name.

Every write compares the broker epoch, and a controller's write also the revision of the controller's key: a broker that
was taken for dead, or a controller that was deposed, is stopped inside the store and not by its own good manners.

Guards: without a registration nothing is written; a broker whose store turned out to be another or an earlier one holds
none any more; an answer that was lost is looked up, never guessed (`writer`).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, ChangePlan
from lowtide.metadata.errors import FencedError, InconsistentClusterError, NotControllerError, StoreWentBackError
from lowtide.metadata.store import ABSENT, Compare, LeaseId, Revision

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.image_follower import ImageFollower
    from lowtide.metadata.lease import HeldLease
    from lowtide.metadata.store_guard import StoreGuard
    from lowtide.metadata.writer import FencedWriter
    from lowtide.protocol.types import BrokerEpoch, BrokerId


class HeldRegistration:
    """Part of a session, used from its loop."""

    def __init__(
        self,
        broker_id: BrokerId,
        *,
        writer: FencedWriter,
        follower: ImageFollower,
        lease: HeldLease,
        store_guard: StoreGuard,
        prefix: bytes,
    ) -> None:
        """None is held yet."""
        self.broker_id = broker_id
        self.broker_epoch: BrokerEpoch = 0
        self.refused = ""
        """Why this broker may not act on the store, for good; empty while it may."""
        self._writer = writer
        self._follower = follower
        self._lease = lease
        self._store_guard = store_guard
        self._prefix = prefix
        self._listeners: list[Callable[[], None]] = []

    @property
    def image(self) -> MetadataImage:
        """The cluster, as this broker sees it."""
        return self._follower.image

    @property
    def lease_id(self) -> LeaseId:
        """The lease under which the broker is registered, or was."""
        return self._lease.id

    @property
    def is_controller(self) -> bool:
        """Whether the image shows this broker as controller. A write finds out whether that still holds."""
        return self.broker_epoch != 0 and self.image.controller_id == self.broker_id

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener()` whenever the broker epoch has become another: lost, it is 0; then a new one."""
        self._listeners.append(listener)

    def set_epoch(self, epoch: BrokerEpoch) -> None:
        """Hold this registration, or none with 0. A refused broker holds none."""
        if epoch == 0 or self.refused:
            epoch = 0
            self._lease.end()
        if epoch != self.broker_epoch:
            self.broker_epoch = epoch
            for listener in self._listeners:
                listener()

    def close(self) -> None:
        """The session is closed: nothing is written any more, and no listener is called."""
        self.broker_epoch = 0

    async def refuse(self, error: InconsistentClusterError) -> None:
        """Act no more, from this moment on; have the others stop too where the store is to blame."""
        if self.refused:
            return
        self.refused = str(error)
        self.set_epoch(0)
        if isinstance(error, StoreWentBackError):
            await self._store_guard.suspend(error.reason)

    def fences(self, *, needs_controller: bool) -> list[Compare]:
        """What a write must compare. Errors: FencedError, NotControllerError."""
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

    async def commit(self, plan: ChangePlan) -> Revision:
        """Make the steps of `plan`, fenced.

        Returns the revision of the last. Errors: as of `MetadataSession.commit`.
        """
        fences = self.fences(needs_controller=plan.needs_controller)
        async with self._refusing():
            return await self._writer.write(plan.steps, fences, self.image.revision)

    async def allocate_producer_ids(self) -> range:
        """Take a block of unused producer ids. Errors: FencedError, UnavailableError."""
        async with self._refusing():
            return await self._writer.allocate_producer_ids(self.fences(needs_controller=False))

    async def wait_for(self, revision: Revision) -> None:
        """Return when the image shows `revision`, one that changed a key under the prefix.

        Errors: SessionError when the session closes.
        """
        await self._follower.wait_for(revision)

    @asynccontextmanager
    async def _refusing(self) -> AsyncGenerator[None, None]:
        """A write that finds out that the store went back is fenced. Errors: FencedError."""
        try:
            yield
        except InconsistentClusterError as error:
            await self.refuse(error)
            raise FencedError(str(error)) from error
