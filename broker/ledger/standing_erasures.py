"""Looks for the keys of standing erasures in what is written to their topics, and erases the records.

The leader of a partition searches what was appended since its last search, about every
`lowtide.erasure.standing.interval.ms`, for all standing erasures of the topic at once. What it finds is erased by an
erasure of the same id, as after a request. How far it has searched is in the ledger, for the next leader. That is
written at most every ten minutes, so a new leader may search ten minutes again; without an entry it searches the whole
log.

Guards: a standing erasure is in the image of the leader before the search of the request begins (`find_records`), so
a later search of this or a later leader knows it. A search counts for its leader epoch. After a truncation a leader
begins where its log and the ledger's entry part. Keys are in memory only. What can't be erased now is searched again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.config.key import number
from lowtide.broker.ledger.erasure_ledger import ErasureLedger, LedgerPartition
from lowtide.broker.ledger.ledger_entries import ErasureRequest
from lowtide.broker.ledger.search_eraser import SearchEraser, SearchErasure
from lowtide.broker.ledger.standing_confirmations import StandingConfirmations
from lowtide.broker.ledger.standing_index import StandingIndex
from lowtide.broker.partitions.compacted_erasures import searching_everywhere, why_not_searchable
from lowtide.broker.partitions.erasures import is_compacted, why_not_erasable
from lowtide.broker.partitions.older_versions import ErasureTerms
from lowtide.broker.partitions.replica_searches import SearchParts
from lowtide.protocol.erasure_ledger_records import LedgerEntry, SelectorKind, StandingKey, StandingSearch
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_records import FoundPartition
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import UNKNOWN_OFFSET
from lowtide.replication.refusal import Refusal
from lowtide.replication.standing_changes import plan_sweep_of_standing
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import KeySelector, OffsetSelector

if TYPE_CHECKING:
    from lowtide.broker.context import BrokerContext
    from lowtide.broker.ledger.standing_index import TopicStanding
    from lowtide.metadata.changes import ChangePlan
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import LeaderEpoch, Offset, TopicId, TopicPartition
    from lowtide.replication.partition import Partition
    from lowtide.storage.log.log import Log

NOTE_MS: Final = 600_000
"""How often it is written to the ledger how far a partition is searched."""

ATTEMPT_S: Final = 30
"""How long one reading of the ledger, or one write, may take; it is repeated in the next round."""

ERASE_S: Final = 600
"""How long one erasure may take. In a compacted log all replicas search for it."""

INTERVAL_KEY: Final = "lowtide.erasure.standing.interval.ms"


class _Progress(msgspec.Struct):
    """How far a partition is searched in one leader epoch. Times are monotonic milliseconds."""

    topic_id: TopicId
    leader_epoch: LeaderEpoch
    searched_to: Offset
    """Exclusive."""
    noted_to: Offset = UNKNOWN_OFFSET
    noted_ms: int | None = None


class StandingErasures:
    """The searches of one broker for standing erasures, and what they have found."""

    def __init__(
        self, broker: BrokerContext, ledger: ErasureLedger, searching: SearchParts, eraser: SearchEraser
    ) -> None:
        self._broker = broker
        self._ledger = ledger
        self._searching = searching
        self._eraser = eraser
        self._index = StandingIndex(broker.metadata.image.standing)
        self._progress: dict[TopicPartition, _Progress] = {}
        self._next_ms = 0
        self._running = False
        self._sweeping = False
        self._confirmations = StandingConfirmations(searching)

    # What stands

    def on_image(self, image: MetadataImage) -> None:
        """Takes over the standing erasures of an image.

        Where an erasure is the first one of its topic, all that the log has now is left to the request that began it.
        """
        before = self._index
        if image.standing is before.standing:
            return
        self._index = StandingIndex(image.standing)
        for partition in self._broker.replicas.partitions.values():
            key = partition.topic_partition
            if not partition.is_leader or not self._index.names(key.topic):
                self._progress.pop(key, None)
            elif not before.names(key.topic):
                self._progress[key] = _begun(partition, partition.log.log_end_offset)

    def on_tick(self) -> None:
        """Begins a round when it is due. The controller removes what has ended. Called about once a second."""
        if not self._index.standing:
            return
        broker, metadata = self._broker, self._broker.metadata
        is_controller = metadata.image.controller_id == metadata.broker_id
        if is_controller and not self._sweeping and not self._swept().is_empty:
            self._sweeping = True
            broker.tasks.spawn(self._sweep(), name="standing sweep")
        now_ms = broker.clock.monotonic_ms()
        if not self._running and now_ms >= self._next_ms:
            self._next_ms = now_ms + int(number(broker.configs.current.values[INTERVAL_KEY]))
            self._running = True
            broker.tasks.spawn(self._round(), name="standing erasures")

    def _swept(self) -> ChangePlan:
        return plan_sweep_of_standing(self._broker.metadata.image, self._broker.clock.wall_ms())

    async def _sweep(self) -> None:
        try:
            deadline = asyncio.get_running_loop().time() + ATTEMPT_S
            outcome = await decide_and_commit(self._broker.metadata, self._swept, deadline)
            if not isinstance(outcome, Refusal) and not outcome.is_empty:
                self._broker.log.info("standing erasures have ended", count=len(outcome.steps[0].operations))
        finally:
            self._sweeping = False

    # One round

    async def _round(self) -> None:
        try:
            led = self._led()
            self._progress = {each.topic_partition: known for each in led if (known := self._known(each)) is not None}
            await self._load([each for each in led if self._known(each) is None])
            for partition in sorted(led, key=self._unsearched):  # A long log must not delay all others.
                progress = self._known(partition)
                if progress is not None:
                    await self._search(partition, progress)
                await asyncio.sleep(0)
            await self._note(led)
            self._confirmations.begin_round()
        finally:
            self._running = False

    def _led(self) -> list[Partition]:
        return [
            partition
            for partition in self._broker.replicas.partitions.values()
            if partition.is_leader and self._index.names(partition.topic_partition.topic)
        ]

    def _known(self, partition: Partition) -> _Progress | None:
        """Returns how far a partition is searched in this leader epoch, if it is known."""
        progress = self._progress.get(partition.topic_partition)
        if progress is None or not partition.is_leader:
            return None
        known = (progress.topic_id, progress.leader_epoch)
        return progress if known == (partition.topic_id, partition.leader_epoch) else None

    def _unsearched(self, partition: Partition) -> int:
        """Returns how many offsets are to be searched."""
        progress = self._known(partition)
        return 0 if progress is None else partition.log.log_end_offset - progress.searched_to

    async def _load(self, partitions: list[Partition]) -> None:
        """Reads from the ledger how far earlier leaders have searched."""
        if not partitions:
            return
        epochs = [each.leader_epoch for each in partitions]
        deadline = asyncio.get_running_loop().time() + ATTEMPT_S
        places = [LedgerPartition(each.topic_id, each.topic_partition.partition) for each in partitions]
        entries = await self._ledger.read(places, deadline)
        if isinstance(entries, ErrorCode):
            self._broker.log.warning(
                "standing erasures wait because the erasure ledger can't be read", error=entries.name
            )
            return
        noted: dict[tuple[TopicId, int], StandingSearch] = {}
        others: dict[tuple[TopicId, int], list[LedgerEntry]] = {}
        for each in entries:
            if isinstance(each.value, StandingSearch):
                noted[each.key.topic_id, each.key.partition] = each.value
            elif not isinstance(each.key, StandingKey) and bytes(each.key.erasure_id) in self._index.standing:
                others.setdefault((each.key.topic_id, each.key.partition), []).append(each)
        for partition, place, leader_epoch in zip(partitions, places, epochs, strict=True):
            entry = noted.get(place)
            searched_to = 0 if entry is None else _same_up_to(partition.log, entry)
            self._confirmations.resume(partition.topic_partition, place, others.get(place, ()))
            if partition.leader_epoch == leader_epoch:
                self._progress[partition.topic_partition] = _begun(partition, searched_to)

    async def _search(self, partition: Partition, progress: _Progress) -> None:
        """Searches what was appended since the last search, and erases what is found."""
        log, goal = partition.log, partition.log.log_end_offset
        standing = self._index.of(partition.topic_partition.topic)
        end_offset = goal
        while standing.ids and progress.searched_to < goal and self._why_not(partition) is None:
            outcome = await self._searching.searches.search(
                partition, standing.selector, end_offset, first_offset=progress.searched_to, with_keys=True
            )
            if (
                outcome in (SearchFailure.TOO_MANY, SearchFailure.TOO_MANY_KEYS)
                and end_offset - progress.searched_to > 1
            ):
                end_offset = progress.searched_to + (end_offset - progress.searched_to) // 2
                continue
            if not isinstance(outcome, SearchedLog):
                self._warn(partition, outcome.value)
                return
            if outcome.records and not await self._erase(partition, standing, outcome, progress.searched_to):
                return
            if partition.log is not log or self._known(partition) is not progress:
                return
            progress.searched_to, end_offset = end_offset, goal

    def _why_not(self, partition: Partition) -> Refusal | None:
        """Returns why nothing can be erased in a partition now. What is written meanwhile is searched later."""
        if partition.log.erasures.withheld or partition.log.config.is_held(self._broker.clock.wall_ms()):
            return Refusal(ErrorCode.POLICY_VIOLATION, "")
        return why_not_erasable(self._broker.replicas, partition)

    # What was found

    async def _erase(
        self, partition: Partition, standing: TopicStanding, found: SearchedLog, first_offset: Offset
    ) -> bool:
        """Erases what was found from `first_offset` on, for each standing erasure. Returns whether all is erased.

        Nothing is erased for an erasure that is over by this broker's clock.
        """
        assert found.keys is not None
        now_ms, keys = self._broker.clock.wall_ms(), [key or b"" for key, _ in found.keys.each()]
        named: dict[bytes, list[tuple[Offset, bytes]]] = {}
        groups = {key: standing.digests.groups_of(key) for key in set(keys)}
        for offset, key in zip(found.records.offsets, keys, strict=True):
            for group in groups[key]:
                named.setdefault(standing.ids[group], []).append((offset, key))
        done = True
        for erasure_id, rows in named.items():
            each = self._index.standing.get(erasure_id)
            if each is None:
                continue
            if each.record.ends_ms <= now_ms:  # The clock may be ahead. If it is not, the controller removes it soon.
                self._warn(partition, "one is over by the clock of this broker, but not by the controller's")
                done = False
                continue
            request = ErasureRequest(erasure_id, SelectorKind.KEYS, each.record.commitment, each.record.principal)
            if is_compacted(partition.log):
                selector = KeySelector(frozenset(key for _, key in rows))
                done = await self._erase_versions(partition, request, selector) and done
            else:
                offsets = OffsetSelector(OffsetRanges.of_offsets([offset for offset, _ in rows]).ranges())
                done = await self._erase_offsets(partition, request, offsets, (first_offset, found.end_offset)) and done
        return done

    async def _erase_offsets(
        self, partition: Partition, request: ErasureRequest, selector: OffsetSelector, bounds: tuple[Offset, Offset]
    ) -> bool:
        """Erases records within bounds (the end is exclusive). Returns whether it has."""
        searches, (first_offset, end_offset) = self._searching.searches, bounds
        running = searches.begin(partition, selector, end_offset, first_offset=first_offset)
        if isinstance(running, SearchFailure):
            self._warn(partition, running.value)
            return False
        try:
            return await self._erased(partition, request, SearchErasure(running, None), running.done)
        finally:
            searches.forget(running)

    async def _erase_versions(self, partition: Partition, request: ErasureRequest, selector: KeySelector) -> bool:
        """Erases all versions of keys in a compacted log, which all its replicas search. Returns whether it has."""
        refusal = why_not_searchable(self._broker.replicas, partition)
        if refusal is not None:
            self._warn(partition, refusal.message)
            return False
        end_offset = partition.log.log_end_offset
        with searching_everywhere(self._searching, partition, ErasureTerms(selector), end_offset) as everywhere:
            if isinstance(everywhere, SearchFailure):
                self._warn(partition, everywhere.value)
                return False
            return await self._erased(
                partition, request, SearchErasure(everywhere.running, everywhere), everywhere.done
            )

    async def _erased(
        self, partition: Partition, request: ErasureRequest, erasure: SearchErasure, searched: asyncio.Event
    ) -> bool:
        """Waits until the search has ended, and erases what it has found. Returns whether it has."""
        deadline = asyncio.get_running_loop().time() + ERASE_S
        try:
            async with asyncio.timeout_at(deadline):
                await searched.wait()
        except TimeoutError:
            self._warn(partition, erasure.waits_for or "the log is not searched yet")
            return False
        if not isinstance(erasure.outcome, SearchedLog):
            self._warn(partition, str(erasure.outcome))
            return False
        row = FoundPartition(partition_index=partition.topic_partition.partition, error_code=ErrorCode.NONE)
        await self._eraser.erase(request, [(row, erasure)], deadline)
        return self._is_erased(partition, request, row, len(erasure.outcome.records))

    def _is_erased(self, partition: Partition, request: ErasureRequest, row: FoundPartition, count: int) -> bool:
        """Returns whether a row has no error. Logs the outcome, and adds the replicas that must confirm it."""
        if row.error_code != ErrorCode.NONE:
            self._warn(partition, row.error_message or ErrorCode(row.error_code).name)
            return False
        self._broker.log.info(
            "records that returned were erased again",
            partition=str(partition.topic_partition),
            erasure_id=request.erasure_id.hex(),
            records=count,
        )
        if row.erasures_end > 0:
            place = LedgerPartition(partition.topic_id, partition.topic_partition.partition)
            goal = EraseGoal(row.log_start_offset, row.erasures_end)
            self._confirmations.add(request.erasure_id, partition.topic_partition, place, goal)
        return True

    def _warn(self, partition: Partition, reason: str) -> None:
        self._broker.log.warning(
            "standing erasures of a partition wait for the next round",
            partition=str(partition.topic_partition),
            reason=reason,
        )

    # How far

    async def _note(self, partitions: list[Partition]) -> None:
        """Writes to the ledger how far partitions are searched, where that is due."""
        now_ms, wall_ms = self._broker.clock.monotonic_ms(), self._broker.clock.wall_ms()
        due: list[tuple[_Progress, Offset]] = []
        entries: list[LedgerEntry] = []
        for partition in partitions:
            progress = self._known(partition)
            if progress is None or not _is_due(progress, now_ms):
                continue
            due.append((progress, progress.searched_to))
            entries.append(_entry(partition, progress.searched_to, wall_ms))
        error = await self._ledger.record(entries, asyncio.get_running_loop().time() + ATTEMPT_S)
        if error == ErrorCode.NONE:
            for progress, searched_to in due:
                progress.noted_to, progress.noted_ms = searched_to, now_ms


def _begun(partition: Partition, searched_to: Offset) -> _Progress:
    return _Progress(partition.topic_id, partition.leader_epoch, searched_to)


def _same_up_to(log: Log, entry: StandingSearch) -> Offset:
    """Returns the exclusive end of those searched records that the log still has at their offsets."""
    if entry.leader_epoch < 0:
        return 0
    _, end_offset = log.leader_epochs.end_offset_for(entry.leader_epoch, log.log_end_offset)
    return max(min(entry.searched_to, end_offset), 0)


def _is_due(progress: _Progress, now_ms: int) -> bool:
    if progress.searched_to <= progress.noted_to:
        return False
    return progress.noted_ms is None or now_ms - progress.noted_ms >= NOTE_MS


def _entry(partition: Partition, searched_to: Offset, now_ms: int) -> LedgerEntry:
    key = StandingKey(topic_id=partition.topic_id, partition=partition.topic_partition.partition)
    value = StandingSearch(
        topic=partition.topic_partition.topic,
        searched_to=searched_to,
        leader_epoch=partition.log.leader_epochs.epoch_at(searched_to - 1) if searched_to else -1,
        searched_ms=now_ms,
    )
    return LedgerEntry(key, value)
