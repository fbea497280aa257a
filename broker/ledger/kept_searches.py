"""Keeps the searches of FindRecords, so that requests with the same id join them.

Guards: a bounded number of search ids, in total and for each client. A search that nobody asks for is forgotten after a
while, and its result earlier if others need the room.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.broker.client_waits import client_wait
from lowtide.broker.ledger.search_eraser import SearchErasure
from lowtide.broker.partitions.compacted_erasures import CompactedErasure, why_not_searchable
from lowtide.broker.partitions.erasures import is_compacted
from lowtide.broker.partitions.newest_versions import NewestSearch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure

if TYPE_CHECKING:
    from lowtide.broker.ledger.named_records import ReplayedSearch
    from lowtide.broker.partitions.log_searches import PartitionSearch
    from lowtide.broker.partitions.older_versions import ErasureTerms
    from lowtide.broker.partitions.replica_searches import SearchParts
    from lowtide.replication.partition import Partition
    from lowtide.storage.erasures.record_search import RecordSelector

IDS_MAX: Final = 32
IDS_SHARE: Final = 8
"""The number of search ids whose searches are kept, in total and for each client. Each may have a megabyte of keys."""

KEPT_MS: Final = 60_000
"""How long a search and its result are kept after the last request."""

REPLICAS_KEPT_MS: Final = 10_000
"""The same for a search of all replicas: until it ends, no other replica joins the ISR."""

_LOOK_S: Final = REPLICAS_KEPT_MS / 4_000

CODES: Final = {
    SearchFailure.CHANGED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    SearchFailure.MOVED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    SearchFailure.CUT: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    SearchFailure.TOO_MANY: ErrorCode.POLICY_VIOLATION,
    SearchFailure.TOO_MANY_KEYS: ErrorCode.POLICY_VIOLATION,
    SearchFailure.UNREADABLE: ErrorCode.KAFKA_STORAGE_ERROR,
    SearchFailure.BUSY: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    SearchFailure.CANCELLED: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}

_OTHER_SELECTOR: Final = "Another search has this id."

NAMED_COMPACTED: Final = (
    "The topic is or was compacted: restored replicas may have versions of a key that the ledger doesn't name. Erase "
    "all of them by key, with lowtide records erase --keys-from."
)

_LOST_FIRST: Final = "The partition lacks earlier erasures, which are repeated first; ask again."
"""Only one erasure of a compacted log is under way at a time, and consumers wait for that one (`lost_erasures`)."""

_TOO_MANY_IDS: Final = "Too many searches are kept; ask again in a minute."


class SearchKey(NamedTuple):
    """Searches with the same key are one. `erase` tells an erasure from a search with its id."""

    search_id: bytes
    partition: TopicPartition
    erase: bool


class KeptSearch:
    """A search that requests can join."""

    __slots__ = ("askers", "client", "erasure", "left_ms", "newest", "running", "terms")

    def __init__(
        self, erasure: SearchErasure, terms: ErasureTerms, client: str, newest: NewestSearch | None = None
    ) -> None:
        """`newest` is there if the newest versions of keys are wanted, in a log that may have several of a key."""
        self.running = erasure.running
        self.erasure = erasure
        self.newest = newest
        self.client = client
        self.terms = terms
        self.askers = 0
        """Requests that wait for it."""
        self.left_ms = 0
        """When the last of them was answered."""

    def join(self) -> None:
        """Adds a request that waits for it."""
        self.askers += 1

    def leave(self, now_ms: int) -> None:
        """Removes a request that no longer waits for it."""
        self.askers -= 1
        self.left_ms = now_ms

    @property
    def done(self) -> asyncio.Event:
        if self.newest is not None:
            return self.newest.done
        compacted = self.erasure.compacted
        return self.running.done if compacted is None else compacted.done

    @property
    def outcome(self) -> SearchedLog | SearchFailure | Refusal | None:
        """What was found; None while the search is under way."""
        return self.erasure.outcome if self.newest is None else self.newest.outcome

    @property
    def kept_ms(self) -> int:
        """How long it is kept after the last request."""
        return KEPT_MS if self.erasure.compacted is None else REPLICAS_KEPT_MS

    @property
    def is_over(self) -> bool:
        """Whether nothing can be joined: it has failed, or its partition has changed."""
        return isinstance(self.outcome, SearchFailure | Refusal) or not self.running.is_current()

    def is_answered(self, *, erase: bool) -> bool:
        """Returns whether the search or the erasure is done, and nobody waits for it. Then a replay may follow."""
        return not self.askers and (self.erasure.is_recorded if erase else self.done.is_set())


class KeptSearches:
    """The searches of one broker that are under way or whose results are kept."""

    def __init__(self, parts: SearchParts) -> None:
        self._parts = parts
        self._kept: dict[SearchKey, KeptSearch] = {}
        self._timer: asyncio.TimerHandle | None = None

    def joined(
        self,
        key: SearchKey,
        partition: Partition,
        terms: ErasureTerms,
        client: str,
        replay: ReplayedSearch | None = None,
    ) -> KeptSearch | Refusal:
        """Returns the search of a partition that is led here, begun now if necessary, or why there is none.

        An erasure may have several replays, one after the other: for each commitment, and each part of a long list.
        """
        kept = self._kept.get(key)
        if kept is not None and kept.running.partition is not partition:
            self._forget(key)  # The topic was deleted and created again.
            kept = None
        if kept is not None and (kept.terms, kept.client, kept.erasure.replay) != (terms, client, replay):
            if replay is None or not kept.is_answered(erase=key.erase):
                return Refusal(ErrorCode.INVALID_REQUEST, _OTHER_SELECTOR)
            self._forget(key)
            kept = None
        if kept is not None and kept.is_over:
            self._forget(key)  # The failure was answered, or nobody was there to read it.
            kept = None
        if kept is not None:
            return kept
        if not self._has_room(key.search_id, client):
            return Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _TOO_MANY_IDS)
        is_by_all = key.erase and is_compacted(partition.log)
        refusal = why_not_searchable(self._parts.replicas, partition) if is_by_all else None
        if replay is not None and is_compacted(partition.log):
            refusal = Refusal(ErrorCode.POLICY_VIOLATION, NAMED_COMPACTED)
        elif is_by_all and partition.log.erasures.withheld:
            refusal = Refusal(ErrorCode.THROTTLING_QUOTA_EXCEEDED, _LOST_FIRST)
        if refusal is not None:
            return refusal
        names_newest = terms.names_newest and not key.erase and is_compacted(partition.log)
        with_keys = (is_by_all or names_newest) and terms.must_widen
        running = self._begun(partition, terms.selector, with_keys=with_keys)
        if isinstance(running, SearchFailure):
            return Refusal(CODES[running], running.sentence)
        compacted = newest = None
        if is_by_all:
            compacted = CompactedErasure(self._parts, running, terms)
            compacted.begin()
        elif with_keys:
            newest = NewestSearch(self._parts.searches, running)
            newest.begin(self._parts.tasks)
        kept = self._kept[key] = KeptSearch(SearchErasure(running, compacted, replay), terms, client, newest)
        self._set_timer()
        return kept

    def _begun(
        self, partition: Partition, selector: RecordSelector, *, with_keys: bool
    ) -> PartitionSearch | SearchFailure:
        """Begins a search; forgets finished ones, the oldest first, if there are too many."""
        while True:
            begun = self._parts.searches.begin(partition, selector, partition.log.log_end_offset, with_keys=with_keys)
            if begun is not SearchFailure.BUSY or not self._forget_finished(None):
                return begun

    def _has_room(self, search_id: bytes, client: str) -> bool:
        """Returns whether a client may begin another search; forgets finished ones, the oldest first, if necessary."""
        while True:
            clients = {key.search_id: kept.client for key, kept in self._kept.items()}
            clients.pop(search_id, None)
            others = list(clients.values())
            of_this = others.count(client) >= IDS_SHARE
            if not of_this and len(others) < IDS_MAX:
                return True
            if not self._forget_finished(client if of_this else None):
                return False

    def _forget_finished(self, client: str | None) -> bool:
        """Forgets the result that was requested longest ago, of one client or of all. Returns whether there was one.

        A later request searches again.
        """
        finished = [
            (kept.left_ms, key)
            for key, kept in self._kept.items()
            if not kept.askers and kept.done.is_set() and client in (None, kept.client)
        ]
        if finished:
            self._forget(min(finished)[1])
        return bool(finished)

    async def wait(self, searches: list[KeptSearch], deadline: float) -> None:
        """Waits until all are done, the time is over, or the client has disconnected."""
        for kept in searches:
            kept.join()
        try:
            async with client_wait(deadline):
                for kept in searches:
                    await kept.done.wait()
        except TimeoutError:
            return
        finally:
            now_ms = self._parts.clock.monotonic_ms()
            for kept in searches:
                kept.leave(now_ms)

    def _forget(self, key: SearchKey) -> None:
        kept = self._kept.pop(key)
        self._parts.searches.forget(kept.running)
        if kept.erasure.compacted is not None:
            kept.erasure.compacted.cancel()
        if kept.newest is not None:
            kept.newest.cancel()

    def _set_timer(self) -> None:
        if self._timer is None and self._kept:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._parts.clock.monotonic_ms()
        for key, kept in list(self._kept.items()):
            if not kept.askers and now_ms >= kept.left_ms + kept.kept_ms:
                self._forget(key)
        self._set_timer()
