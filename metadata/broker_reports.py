"""Reports of a broker besides its registration: that it stops, replicas that it can't serve, and cordoned disks.

Guards: a report is written under the lease of the registration, and fenced by it. A changed report is written as soon
as the store is reachable.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.broker_image import Replicas, encode_replicas
from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.records import BrokerRecord, decode, encode
from lowtide.metadata.store import ABSENT, Compare, MetadataStore, Put
from lowtide.metadata.writer import RETRIABLE, StoreBackoff

if TYPE_CHECKING:
    from lowtide.metadata.held_registration import HeldRegistration
    from lowtide.metadata.store_guard import StoreGuard


class BrokerReports:
    """Part of a session, used from its loop."""

    def __init__(self, held: HeldRegistration, store: MetadataStore, store_guard: StoreGuard, prefix: bytes) -> None:
        self.offline: Replicas = {}
        """The replicas that can't be served here."""
        self.cordoned = False
        """Whether this broker takes no new partitions."""
        self._was_cordoned = False
        self._held = held
        self._store = store
        self._store_guard = store_guard
        self._prefix = prefix
        self.stops = False
        """Whether a controlled shutdown has begun. Others may see it before this broker's image does."""
        self._changed = asyncio.Event()

    def begin_controlled_shutdown(self) -> None:
        """Reports that this broker wants to stop: the controller moves its leaderships and places nothing new on it."""
        self.stops = True
        self.wake()

    def set_offline(self, replicas: Replicas) -> None:
        """Reports that exactly these replicas can't be served here."""
        if replicas != self.offline:
            self.offline = replicas
            self.wake()

    def set_cordoned(self, *, cordoned: bool) -> None:
        """Reports whether all log directories are cordoned, so that the controller places no partitions here."""
        if cordoned != self.cordoned:
            self.cordoned = cordoned
            self.wake()

    def wake(self) -> None:
        """Makes `report` compare the store again: after a new registration or a renewed lease."""
        self._changed.set()

    async def report(self) -> None:
        """Writes the reports whenever they change. Never returns."""
        backoff = StoreBackoff()
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write()
            except RETRIABLE:
                await backoff.wait()
                self._changed.set()
            else:
                backoff = StoreBackoff()

    async def _write(self) -> None:
        if self._held.broker_epoch == 0:
            return  # A new registration includes them or writes them.
        written = self._held.image.offline_replicas.get(self._held.broker_id, {})
        if written != self.offline:
            await self._put(keys.offline(self._held.broker_id), encode(encode_replicas(self.offline)))
        if self.cordoned or self._was_cordoned:
            await self._put_cordoned()
        if self.stops:
            await self._put(keys.shutdown(self._held.broker_id), encode(self._held.broker_epoch))
        if (witness := self._store_guard.witness()) is not None:
            await self._held.commit(ChangePlan((witness,), needs_controller=False))

    async def _put_cordoned(self) -> None:
        """Changes the record of the registration. Its revision of creation, the broker epoch, stays."""
        key, cordoned = keys.broker(self._held.broker_id), self.cordoned
        pair = await self._store.get(self._prefix + key)
        if pair is not None and pair.create_revision == self._held.broker_epoch:
            record = decode(key, pair.value, BrokerRecord)
            if record.is_cordoned != cordoned:
                record = msgspec.structs.replace(record, is_cordoned=cordoned)
                await self._put(key, encode(record))
        self._was_cordoned = cordoned

    async def _put(self, key: bytes, value: bytes) -> None:
        """Writes a key with our lease, unless it has the value.

        Only one process writes it; the comparison protects against its own late attempts.
        """
        pair = await self._store.get(self._prefix + key)
        if pair is not None and (pair.value, pair.lease) == (value, self._held.lease_id):
            return
        unchanged = Compare(key, "modify", "==", ABSENT if pair is None else pair.modify_revision)
        await self._held.commit(
            ChangePlan((Step((Put(key, value, self._held.lease_id),), (unchanged,)),), needs_controller=False)
        )
