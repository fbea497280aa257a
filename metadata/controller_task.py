"""Becomes controller, and does the controller's work.

The controller's key is under the lease of its registration, so it is free when that broker is gone. `reconcile` decides
what the work is (`replication/controller`).

Guards: the key is taken only if it is free, and each write of a controller compares its revision (`held_registration`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import ControllerRecord, encode
from lowtide.metadata.store import ABSENT, Compare, Get, MetadataStore, Put
from lowtide.metadata.writer import RETRIABLE, StoreBackoff

if TYPE_CHECKING:
    from lowtide.metadata.held_registration import HeldRegistration
    from lowtide.metadata.store import KeyValue

Reconcile: TypeAlias = Callable[[MetadataImage], ChangePlan]
"""Plans the necessary changes for an image."""


class ControllerTask:
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
        """Schedules the work: brokers, the controller, or something else that it depends on has changed."""
        self._due.set()

    async def run(self) -> None:
        """Becomes controller if there is none, and does its work, whenever woken. Never returns."""
        backoff = StoreBackoff()
        while True:
            await self._due.wait()
            self._due.clear()
            if await self.attempt() is None:
                backoff = StoreBackoff()
            else:
                self._due.set()  # Safe to repeat: it compares the whole image with the desired state.
                await backoff.wait()

    async def attempt(self) -> Exception | None:
        """Does the controller's work. Returns an error that a newer image or a later attempt may resolve."""
        try:
            await self._do()
        except RETRIABLE as error:
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
        """Takes the controller's key if it is free. Returns when the image shows the owner."""
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
    """Returns the next controller epoch. If the last one is unreadable, the revision is above it."""
    return (int(current.value) if current.value.isdigit() else current.modify_revision) + 1
