"""Decides whether this broker may act on the store.

A store restored from a backup has lost data: topics created since, deletes, ISRs. A broker that acted on it would
remove, truncate or serve what it must not. Five things reveal such a store:

* The metadata that a log directory remembers (`metadata_copy`) can't have become the store's.
* A broker writes to the store, soon after a change, that it has acted on it. No other broker writes that key, so its
  revision can't be mistaken for a later one.
* The store's raft log is shorter than it would be without a restore. That needs no memory, so even a broker that was
  away finds out.
* The store goes back while a broker is connected, or has another state after a reconnection.
* Another broker found out and suspended the store, which stops every broker.

A store with another history, created by a recovery, is valid for directories that the recovery knew of.

Guards: a refused broker stays refused; only a recovery by an operator lifts a suspension.

`broker/lifecycle/metadata_copies` remembers, `recovery` recovers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lowtide.metadata import keys
from lowtide.metadata.changes import Step
from lowtide.metadata.errors import REMEDY, InconsistentClusterError, NestedPrefixError, StoreWentBackError
from lowtide.metadata.metadata_copy import contradiction, rows_of
from lowtide.metadata.prefixes import around, inside, nesting, prefix_inside, prefixes_around
from lowtide.metadata.records import HistoryRecord, SuspensionRecord, encode
from lowtide.metadata.store import (
    ABSENT,
    AccessDeniedError,
    AmbiguousError,
    Compare,
    Delete,
    Get,
    MetadataStoreError,
    Put,
)
from lowtide.protocol.types import topic_id_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.image_follower import ImageFollower
    from lowtide.metadata.metadata_copy import MetadataCopy
    from lowtide.metadata.store import MetadataStore, TransactionResult
    from lowtide.protocol.types import BrokerId
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random

SURPLUS_MARGIN: Final = 10
"""The possible excess of a measured surplus: entries that etcd applied between the two readings of an answer. A second
restore isn't noticed by it if its backup was made within so few revisions after the recovery from the first."""

WITNESS_INTERVAL_MS: Final = 2000
"""How long a broker may have acted on a change before the store records that. Such a change may be lost unnoticed."""

NO_LEAST: Final = -(1 << 63)

SUSPENSION_TIMEOUT_S: Final = 10.0
"""How long a refused broker tries to suspend the store for all. It doesn't act meanwhile."""


class StoreGuard:
    """Refuses a store that can't be a later state of what this broker acted on. Part of a session."""

    def __init__(
        self,
        store: MetadataStore,
        follower: ImageFollower,
        prefix: bytes,
        broker_id: BrokerId,
        random: Random,
        clock: Clock,
    ) -> None:
        self._store = store
        self._follower = follower
        self._prefix = prefix
        self._broker_id = broker_id
        self._random = random
        self._clock = clock
        self._witness_due_ms = 0
        self._connections = 0
        self._history_id = ""

    async def check(self, remembered: Mapping[str, MetadataCopy]) -> None:
        """Compares the store with what log directories remember, by path.

        Errors: StoreWentBackError, InconsistentClusterError, UnavailableError.
        """
        image, now = self._follower.image, self._follower.copy
        _check_suspension(image)
        for path, copy in remembered.items():
            if image.cluster_id and copy.cluster_id != image.cluster_id:
                continue  # Another cluster's directory, which is refused when it is opened.
            if copy.history_id == image.history.history_id:
                reason = contradiction(copy, now.rows, now.revision)
                if reason is not None:
                    raise StoreWentBackError(
                        f"the metadata store was put back to an earlier state, as {path} shows: {reason}"
                    )
            elif copy.history_id != image.history.previous_id or copy.revision > image.history.previous_revision:
                history = f"is of history {image.history.history_id}" if image.history.history_id else "has no history"
                known = f"of {copy.history_id} at revision {copy.revision}"
                raise InconsistentClusterError(
                    f"the metadata store {history}, the log directory {path} {known}; {REMEDY}"
                )
        if image.history.history_id:
            await self._check_surplus(image.history)

    async def claim_cluster_id(self, wanted: str) -> str:
        """Gives the cluster this id if it has none. Returns its id. Errors: those of the store; NestedPrefixError."""
        key = self._prefix + keys.CLUSTER_ID
        others = [each + keys.CLUSTER_ID for each in prefixes_around(self._prefix)]
        try:
            result = await self._claim(key, wanted, others)
            pair = None if result.succeeded else result.gets[0]
        except AmbiguousError:
            pair = await self._store.get(key)
            if pair is None:
                raise
        else:
            if not result.succeeded and pair is None:  # Another cluster is around this one.
                outer = next(each.key for each in result.gets[1:] if each is not None)
                raise NestedPrefixError(inside(self._prefix, outer.removesuffix(keys.CLUSTER_ID)))
        return wanted if pair is None else pair.value.decode()

    async def _claim(self, key: bytes, wanted: str, others: Sequence[bytes]) -> TransactionResult:
        """Creates the id if no cluster around has one; without permission to read others' keys that isn't checked."""
        compares = [Compare(each, "create", "==", ABSENT) for each in (key, *others)]
        try:
            return await self._store.transact(
                compares, [Put(key, wanted.encode())], [Get(each) for each in (key, *others)]
            )
        except AccessDeniedError:
            if not others:
                raise
        return await self._claim(key, wanted, ())

    async def check_prefix(self) -> str | None:
        """Checks for another cluster around or inside this one.

        An old cluster continues, because it can tell its keys apart; the result is a sentence about the other one, or
        None. A new cluster is refused and gives its id back. Errors: NestedPrefixError; UnavailableError.
        """
        if self._follower.image.history.history_id:
            rows = self._follower.copy.rows.values()
            return await nesting(self._store, self._prefix, ((row[0], row[1]) for row in rows))
        # Not through the follower, which would mistake an id that another broker gave back for a store that went back.
        # A cluster around was excluded when the id was created.
        pairs, _ = await self._store.range(self._prefix)
        found = {row[0]: row for row in rows_of(pairs, self._prefix)}
        inner = prefix_inside(self._prefix, ((row[0], row[1]) for row in found.values()))
        if inner is None:
            return None
        own = found.get(keys.CLUSTER_ID)
        if own is not None:
            key = self._prefix + keys.CLUSTER_ID
            compares = [
                Compare(key, "modify", "==", own[3]),
                Compare(self._prefix + keys.HISTORY, "create", "==", ABSENT),
            ]
            with suppress(AmbiguousError):
                await self._store.transact(compares, [Delete(key)])
        raise NestedPrefixError(around(self._prefix, inner))

    async def begin(self) -> None:
        """Gives the store a history if it has none, and monitors it. Errors: those of the store and of `check`."""
        if not self._follower.image.history.history_id:
            await self._begin_history()
        self._history_id = self._follower.image.history.history_id
        self._store.require_raft_surplus(self._follower.image.history.raft_surplus)
        self._connections = self._store.connections

    async def check_connection(self) -> None:
        """Compares the whole state of the store after a reconnection. Errors: as `ImageFollower.read`."""
        connections = self._store.connections
        if connections != self._connections:
            await self._follower.read()
            self._connections = connections

    def check_image(self, image: MetadataImage) -> None:
        """Checks that a followed image may be acted upon. Errors: InconsistentClusterError."""
        _check_suspension(image)
        if self._history_id and image.history.history_id != self._history_id:
            raise InconsistentClusterError("the metadata were recovered while this broker ran; start it again")

    def witness(self) -> Step | None:
        """Returns the step that records that this broker acted on its newest change; None if recorded recently."""
        copy, now_ms = self._follower.copy, self._clock.monotonic_ms()
        if not copy.has_news or now_ms < self._witness_due_ms:
            return None
        copy.has_news, self._witness_due_ms = False, now_ms + WITNESS_INTERVAL_MS
        return Step((Put(keys.witness(self._broker_id), b"%d" % copy.revision),))

    async def suspend(self, reason: str) -> None:
        """Stops all brokers, if possible: a broker that can't write the suspension still stops itself."""
        key = self._prefix + keys.SUSPENSION
        put = Put(key, encode(SuspensionRecord(f"broker {self._broker_id} found that {reason}", self._broker_id)))
        self._store.require_raft_surplus(NO_LEAST)  # Otherwise this would be refused too.
        with suppress(MetadataStoreError, InconsistentClusterError, TimeoutError):
            async with asyncio.timeout(SUSPENSION_TIMEOUT_S):
                await self._store.transact([Compare(key, "create", "==", ABSENT)], [put])

    async def _check_surplus(self, history: HistoryRecord) -> None:
        surplus = await self._store.raft_surplus()
        if surplus is not None and surplus < history.raft_surplus:
            raise StoreWentBackError(restored(surplus))

    async def _begin_history(self) -> None:
        key = self._prefix + keys.HISTORY
        history = HistoryRecord(
            topic_id_text(self._random.randbytes(16)), least_surplus(await self._store.raft_surplus())
        )
        with suppress(AmbiguousError):
            await self._store.transact([Compare(key, "create", "==", ABSENT)], [Put(key, encode(history))])
        await self._follower.read()
        if not self._follower.image.history.history_id:
            raise AmbiguousError("whether the metadata store has a history now is unknown")


def least_surplus(surplus: int | None) -> int:
    """Returns the least surplus of an uninterrupted store that was measured with this one."""
    return 0 if surplus is None or surplus >= 0 else surplus - SURPLUS_MARGIN


def restored(surplus: int) -> str:
    """Returns what a too small surplus shows."""
    return (
        f"the metadata store was restored from a snapshot: its raft log has {-surplus} entries less than it has "
        "revisions"
    )


def _check_suspension(image: MetadataImage) -> None:
    if image.suspension:
        raise InconsistentClusterError(f"the metadata store is suspended, {image.suspension}; {REMEDY}")
