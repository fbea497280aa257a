"""How a broker becomes controller, and does the controller's work while it is.

The controller's key is under the lease of its registration: it is free when the broker that has it is gone. What the
work is, is decided elsewhere (`replication/controller`), and handed in.

Guards: the key is taken only if it is free, and each write of a controller compares its revision (`held_registration`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.errors import ConflictError, FencedError, NotControllerError
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import ControllerRecord, encode
from lowtide.metadata.store import (
    ABSENT,
    AmbiguousError,
    Compare,
    Get,
    LeaseGoneError,
    MetadataStore,
    Put,
    UnavailableError,
)
from lowtide.metadata.writer import Retry

if TYPE_CHECKING:
    from lowtide.metadata.held_registration import HeldRegistration
    from lowtide.metadata.store import KeyValue

Reconcile: TypeAlias = Callable[[MetadataImage], ChangePlan]
"""What must be changed, seen from an image."""


class ControllerWork:
    """Part of a session, used from its loop."""

    def __init__(
        self, held: HeldRegistration, store: MetadataStore, prefix: bytes, reconcile: Reconcile | None
    ) -> None:
        self._held = held
        self._store = store
        self._prefix = prefix
        self._reconcile = reconcile
        self._due = asyncio.Event()

    def wake(self) -> None:
        """Have the work looked at soon: brokers, the controller, or something else that it depends on has changed."""
        self._due.set()

    async def run(self) -> None:
        """Whenever brokers or the controller change: become controller if there is none, and do its work; endless."""
        retry = Retry()
        while True:
            await self._due.wait()
            self._due.clear()
            if await self.attempt() is None:
                retry = Retry()
            else:
                self._due.set()  # Compares the whole image with what should be, so it may just be done again.
                await retry.wait()

    async def attempt(self) -> Exception | None:
        """Do the controller's work. Returns what went wrong, if a newer image or a store that answers can mend it."""
        try:
            await self._do()
        except (
            ConflictError,
            FencedError,
            NotControllerError,
            UnavailableError,
            AmbiguousError,
            LeaseGoneError,
        ) as error:
            return error
        return None

    async def _do(self) -> None:
        if self._held.broker_epoch == 0:
            return
        if self._held.image.controller_id < 0:
            await self._elect_self()
        while self._reconcile is not None and self._held.is_controller:
            plan = self._reconcile(self._held.image)
            if plan.is_empty:
                return
            await self._held.wait_for(await self._held.commit(plan))

    async def _elect_self(self) -> None:
        """Take the controller's key if it is free. Returns when the image shows who has it."""
        epoch_key, controller_key = self._prefix + keys.CONTROLLER_EPOCH, self._prefix + keys.CONTROLLER
        current = await self._store.get(epoch_key)
        epoch = 1 if current is None else _next_epoch(current)
        compares = [
            Compare(controller_key, "create", "==", ABSENT),
            Compare(epoch_key, "modify", "==", ABSENT if current is None else current.modify_revision),
            *self._held.fences(needs_controller=False),
        ]
        record = encode(ControllerRecord(self._held.broker_id, epoch))
        result = await self._store.transact(
            compares,
            [Put(controller_key, record, self._held.lease_id), Put(epoch_key, b"%d" % epoch)],
            [Get(controller_key)],
        )
        if result.succeeded:
            await self._held.wait_for(result.revision)
        elif result.gets[0] is not None:
            await self._held.wait_for(result.gets[0].create_revision)


def _next_epoch(current: KeyValue) -> int:
    """The epoch of the next controller.

    Where the last one can't be read the revision is above it, for each election makes one.
    """
    return (int(current.value) if current.value.isdigit() else current.modify_revision) + 1
