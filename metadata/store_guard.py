"""Whether the store is the one, and in a state, that this broker may act on.

A store that was put back to a backup forgets: topics that were created since, deletes, who was in sync. A broker that
acted on it would remove, truncate or serve what it must not. Five things give such a store away:

* what a log directory remembers of the metadata (`metadata_copy`) can't have become what the store has
* a broker writes into the store, soon after a change, that it has acted on it: no other writes that key, so its revision can't pass for a
  later one
* the store's raft log is shorter than in an unbroken life; this needs no memory, so it is also found by a broker that was away meanwhile
* the store goes back while a broker is connected with it, or shows another state when a connection is opened again
* another broker found one of these: it writes a suspension into the store, on which every broker stops

A store of another history, which a recovery has made, is for directories that the recovery knew of.

Guards: what a broker was refused for, it is refused for good; only an operator's recovery takes a suspension away.
Does not do: remembering (`broker/lifecycle/metadata_copies`), recovering (`recovery`).
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
"""By how much a measured surplus may be too large: entries that etcd applied between its two readings of an answer.
A second restore goes unnoticed by it if its backup was made so few revisions after the recovery of the first."""

WITNESS_INTERVAL_MS: Final = 2000
"""How long a broker may have acted on a change before the store holds that: what may go back unnoticed where nothing else shows it."""

NO_LEAST: Final = -(1 << 63)

SUSPENSION_TIMEOUT_S: Final = 10.0
"""How long a broker that is refused tries to suspend the store for all, which may be slow: it acts no more meanwhile."""


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
        """Nothing is known of the store yet."""
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
        """Compare the store, which was read, with what log directories remember, by path.

        Errors: StoreWentBackError, InconsistentClusterError, UnavailableError.
        """
        image, now = self._follower.image, self._follower.copy
        _check_suspension(image)
        for path, copy in remembered.items():
            if image.cluster_id and copy.cluster_id != image.cluster_id:
                continue  # A directory of another cluster, which is refused when it is opened.
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
        """Give the cluster this id if it has none.

        Returns the one that it has. Errors: those of the store; NestedPrefixError.
        """
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
            if not result.succeeded and pair is None:  # Then there is one around.
                outer = next(each.key for each in result.gets[1:] if each is not None)
                raise NestedPrefixError(inside(self._prefix, outer.removesuffix(keys.CLUSTER_ID)))
        return wanted if pair is None else pair.value.decode()

    async def _claim(self, key: bytes, wanted: str, others: Sequence[bytes]) -> TransactionResult:
        """Make the id where no cluster around has one; that isn't asked for where another one's keys mustn't be read."""
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
        """Whether another cluster lies around this one, or inside.

        Returns that, in a sentence, for a cluster that has begun long ago.
        It goes on, for its keys are understood, and the other's are not. A new one is refused, and gives its id back.
        Errors: NestedPrefixError; UnavailableError.
        """
        if self._follower.image.history.history_id:
            rows = self._follower.copy.rows.values()
            return await nesting(self._store, self._prefix, ((row[0], row[1]) for row in rows))
        # Not through the follower: it would take an id that another broker has given back for a store that went back.
        # Whether there is a cluster around was compared when the id was made.
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
        """Give the store a history if it has none, and watch over it from now on.

        Errors: those of the store; as `check`.
        """
        if not self._follower.image.history.history_id:
            await self._begin_history()
        self._history_id = self._follower.image.history.history_id
        self._store.require_raft_surplus(self._follower.image.history.raft_surplus)
        self._connections = self._store.connections

    async def check_connection(self) -> None:
        """After a new connection, compare the whole current state of the store. Errors: as `ImageFollower.read`."""
        connections = self._store.connections
        if connections != self._connections:
            await self._follower.read()
            self._connections = connections

    def check_image(self, image: MetadataImage) -> None:
        """Whether what is followed may still be acted upon. Errors: InconsistentClusterError."""
        _check_suspension(image)
        if self._history_id and image.history.history_id != self._history_id:
            raise InconsistentClusterError(
                "the metadata were brought forward while this broker ran, which has to be started again"
            )

    def witness(self) -> Step | None:
        """What has the store hold that this broker has acted on its newest change; None while it holds that, or was just written."""
        copy, now_ms = self._follower.copy, self._clock.monotonic_ms()
        if not copy.has_news or now_ms < self._witness_due_ms:
            return None
        copy.has_news, self._witness_due_ms = False, now_ms + WITNESS_INTERVAL_MS
        return Step((Put(keys.witness(self._broker_id), b"%d" % copy.revision),))

    async def suspend(self, reason: str) -> None:
        """Have all brokers stop. As well as it goes: one that can't write it is refused all the same."""
        key = self._prefix + keys.SUSPENSION
        put = Put(key, encode(SuspensionRecord(f"broker {self._broker_id} found that {reason}", self._broker_id)))
        self._store.require_raft_surplus(NO_LEAST)  # Or this, too, would be refused.
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
    """What the surplus of a store can't fall below, measured as this: 0 in a life without a break."""
    return 0 if surplus is None or surplus >= 0 else surplus - SURPLUS_MARGIN


def restored(surplus: int) -> str:
    """What a surplus shows that is too small."""
    return f"the metadata store was restored from a snapshot: its raft log has {-surplus} entries less than it has revisions"


def _check_suspension(image: MetadataImage) -> None:
    if image.suspension:
        raise InconsistentClusterError(f"the metadata store is suspended, {image.suspension}; {REMEDY}")
