"""The registration that a broker holds, and its fenced writes.

Every write compares the broker epoch, and a controller's write also the revision of the controller's key. So the store
itself stops a broker that was declared dead, or a deposed controller.

Guards: nothing is written without a registration; a broker whose store is another or an earlier one loses its
registration; a lost answer is looked up, never guessed (`writer`).
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
        self.broker_id = broker_id
        self.broker_epoch: BrokerEpoch = 0
        self.refused = ""
        """Why this broker may never act on the store again; empty while it may."""
        self._writer = writer
        self._follower = follower
        self._lease = lease
        self._store_guard = store_guard
        self._prefix = prefix
        self._listeners: list[Callable[[], None]] = []

    @property
    def image(self) -> MetadataImage:
        return self._follower.image

    @property
    def lease_id(self) -> LeaseId:
        """The lease of the current or last registration."""
        return self._lease.id

    @property
    def is_controller(self) -> bool:
        """Whether the image shows this broker as controller. A write verifies that."""
        return self.broker_epoch != 0 and self.image.controller_id == self.broker_id

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` whenever the broker epoch changes: to 0 when it is lost, then to a new one."""
        self._listeners.append(listener)

    def set_epoch(self, epoch: BrokerEpoch) -> None:
        """Sets the registration, or none with 0. A refused broker holds none."""
        if epoch == 0 or self.refused:
            epoch = 0
            self._lease.end()
        if epoch != self.broker_epoch:
            self.broker_epoch = epoch
            for listener in self._listeners:
                listener()

    def close(self) -> None:
        self.broker_epoch = 0

    async def refuse(self, error: InconsistentClusterError) -> None:
        """Stops this broker for good. If the store went back to an earlier state, suspends it for all brokers."""
        if self.refused:
            return
        self.refused = str(error)
        self.set_epoch(0)
        if isinstance(error, StoreWentBackError):
            await self._store_guard.suspend(error.reason)

    def fences(self, *, needs_controller: bool) -> list[Compare]:
        """Returns the comparisons of a write. Errors: FencedError, NotControllerError."""
        if self.broker_epoch == 0:
            raise FencedError(self.refused or f"broker {self.broker_id} is not registered")
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
        """Writes the steps of `plan`, fenced.

        Returns the revision of the last. Errors: see `MetadataSession.commit`.
        """
        fences = self.fences(needs_controller=plan.needs_controller)
        async with self._refusing():
            return await self._writer.write(plan.steps, fences, self.image.revision)

    async def allocate_producer_ids(self) -> range:
        """Allocates a block of unused producer ids. Errors: FencedError, UnavailableError."""
        async with self._refusing():
            return await self._writer.allocate_producer_ids(self.fences(needs_controller=False))

    async def wait_for(self, revision: Revision) -> None:
        await self._follower.wait_for(revision)

    @asynccontextmanager
    async def _refusing(self) -> AsyncGenerator[None, None]:
        """Fences this broker if a write shows that the store went back to an earlier state. Errors: FencedError."""
        try:
            yield
        except InconsistentClusterError as error:
            await self.refuse(error)
            raise FencedError(str(error)) from error
