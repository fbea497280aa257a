"""A broker with stubs of what standing erasures use: logs of keys, the ledger, searches, the eraser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.ledger import standing_erasures
from lowtide.broker.ledger.ledger_entries import ErasureRequest
from lowtide.broker.ledger.standing_erasures import ATTEMPT_S, ERASE_S, INTERVAL_KEY, StandingErasures
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.records import StandingRecord
from lowtide.metadata.standing_image import StandingImage
from lowtide.protocol.erasure_ledger_records import LedgerEntry
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.key_digest import DigestIndex, key_digest
from lowtide.protocol.types import TopicPartition
from lowtide.replication.refusal import Refusal
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.storage.erasures.found_keys import FoundKeys
from lowtide.storage.erasures.log_search import SearchedLog, SearchFailure
from lowtide.storage.erasures.record_search import DigestSelector, FoundRecords, KeySelector, OffsetSelector

ID, OTHER_ID = b"e" * 16, b"o" * 16
PERSON, OTHER, NOBODY = b"person", b"other", b"nobody"
SECRET = b"s" * 32
TOPIC_ID = b"t" * 16
INTERVAL_MS = 10_000
EPOCH = 7
FOREVER_MS = 1 << 50
NONE = ErrorCode.NONE


def standing(*persons: bytes, ends_ms: int = FOREVER_MS, topics: tuple[str, ...] = ("t",)) -> StandingImage:
    record = StandingRecord(
        topics=topics,
        patterns=(),
        commitment=b"c" * 32,
        principal="User:a",
        begun_ms=0,
        ends_ms=ends_ms,
        secret=SECRET,
        digests=tuple(key_digest(SECRET, person) for person in persons),
    )
    return StandingImage(record, 1)


class StubLog:
    """A log of which only the keys matter; erased records have none. Epoch 3 to offset 5, then epoch 7."""

    def __init__(self, key: TopicPartition) -> None:
        self.topic_partition = key
        self.keys: list[bytes | None] = []
        self.log_start_offset = 0
        self.held = False
        self.erasures = SimpleNamespace(withheld=False)
        self.config = SimpleNamespace(is_held=lambda _now_ms: self.held)
        self.leader_epochs = SimpleNamespace(
            epoch_at=lambda offset: 3 if offset < 5 else EPOCH,
            end_offset_for=lambda epoch, end: (epoch, 2 if epoch == 0 else 5 if epoch < EPOCH else end),
        )

    @property
    def log_end_offset(self) -> int:
        return len(self.keys)


class StubConfirmations:
    def __init__(self, _parts: Any) -> None:
        self.added: list[tuple[bytes, int, EraseGoal]] = []
        self.resumed: dict[int, list[LedgerEntry]] = {}
        self.rounds = 0

    def add(self, erasure_id: bytes, key: TopicPartition, place: Any, goal: EraseGoal) -> None:
        assert (place.topic_id, place.partition) == (TOPIC_ID, key.partition)
        self.added.append((erasure_id, key.partition, goal))

    def resume(self, key: TopicPartition, _place: Any, entries: Any) -> None:
        self.resumed[key.partition] = list(entries)

    def begin_round(self) -> None:
        self.rounds += 1


class StandingBroker:
    """Broker 1, which leads partitions of the topics t and u; each search and each erasure is kept."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.wall_ms = 1_000
        self.image: Any = SimpleNamespace(standing={}, controller_id=1)
        self.partitions: dict[TopicPartition, Any] = {}
        self.entries: list[LedgerEntry] | ErrorCode = []
        self.reads: list[list[int]] = []
        self.on_read: Callable[[], None] = lambda: None
        self.recorded: list[LedgerEntry] = []
        self.record_error = NONE
        self.searched: list[tuple[int, int, int]] = []
        self.failure: SearchFailure | None = None
        self.found_max = 1_000
        self.on_search: Callable[[], None] = lambda: None
        self.begun: list[Any] = []
        self.forgotten: list[Any] = []
        self.erased: list[tuple[bytes, list[int]]] = []
        self.erase_errors: list[ErrorCode] = []
        self.erasures_end: int | None = None
        self.never_done = False
        self.late_failure: SearchFailure | None = None
        self.requests: list[ErasureRequest] = []
        self.refusal: Refusal | None = None
        self.not_searchable: Refusal | None = None
        self.everywhere: Any = None
        self.compacted = False
        self.swept: list[ChangePlan | Refusal] = []
        self.ended = False
        self.warnings = 0
        self.running: list[asyncio.Task[None]] = []
        broker: Any = SimpleNamespace(
            metadata=SimpleNamespace(image=self.image, broker_id=1),
            replicas=SimpleNamespace(partitions=self.partitions),
            clock=SimpleNamespace(wall_ms=lambda: self.wall_ms, monotonic_ms=lambda: int(loop.time() * 1000)),
            configs=SimpleNamespace(current=SimpleNamespace(values={INTERVAL_KEY: INTERVAL_MS})),
            tasks=SimpleNamespace(spawn=lambda work, name: self.running.append(asyncio.ensure_future(work))),
            log=SimpleNamespace(info=lambda *_, **__: None, warning=self.warn),
        )
        ledger: Any = SimpleNamespace(read=self.read, record=self.record)
        searching: Any = SimpleNamespace(searches=self)
        eraser: Any = SimpleNamespace(erase=self.erase)
        self.standing = StandingErasures(broker, ledger, searching, eraser)
        self.confirmations: Any = self.standing._confirmations

    def warn(self, *_: Any, **__: Any) -> None:
        self.warnings += 1

    def lead(self, number: int = 0, *keys: bytes | None, topic: str = "t") -> Any:
        key = TopicPartition(topic, number)
        log = StubLog(key)
        log.keys += keys
        self.partitions[key] = SimpleNamespace(
            topic_id=TOPIC_ID, topic_partition=key, is_leader=True, leader_epoch=EPOCH, log=log
        )
        return self.partitions[key]

    def see(self, **erasures: StandingImage) -> None:
        """Gives an image with these erasures, by the first letter of their id."""
        self.image.standing = {name.encode() * 16: each for name, each in erasures.items()}
        self.standing.on_image(self.image)

    async def round(self) -> list[tuple[int, int, int]]:
        """Returns which parts of which partitions are searched in the next round."""
        await asyncio.sleep(INTERVAL_MS / 1000)
        self.searched.clear()
        self.standing.on_tick()
        await asyncio.gather(*self.running)
        self.running.clear()
        return list(self.searched)

    # the ledger
    async def read(self, places: Any, deadline: float) -> Any:
        assert deadline == self.loop.time() + ATTEMPT_S
        self.reads.append([each.partition for each in places])
        self.on_read()
        return self.entries

    async def record(self, entries: list[LedgerEntry], deadline: float) -> ErrorCode:
        assert deadline == self.loop.time() + ATTEMPT_S
        if self.record_error == NONE:
            self.recorded += entries
        return self.record_error

    # the searches
    async def search(
        self, partition: Any, selector: DigestSelector, end_offset: int, *, first_offset: int, with_keys: bool
    ) -> Any:
        assert with_keys
        self.searched.append((partition.topic_partition.partition, first_offset, end_offset))
        await asyncio.sleep(0.01)
        self.on_search()
        if self.failure is not None:
            return self.failure
        index, records, keys = DigestIndex(selector.groups), FoundRecords(), FoundKeys()
        for offset in range(first_offset, end_offset):
            key = partition.log.keys[offset]
            if key is not None and index.groups_of(key):
                records.offsets.append(offset)
                records.timestamps.append(1)
                records.leader_epochs.append(1)
                keys.add(key, -1)
        if len(records) > self.found_max:
            return SearchFailure.TOO_MANY
        return SearchedLog(first_offset, end_offset, records, keys)

    def begin(self, partition: Any, selector: OffsetSelector, end_offset: int, *, first_offset: int) -> Any:
        if self.refusal is not None:
            return SearchFailure.BUSY
        offsets = [offset for first, last in selector.ranges for offset in range(first, last + 1)]
        assert all(first_offset <= offset < end_offset for offset in offsets)
        self.begun.append(self.found(partition, offsets))
        return self.begun[-1]

    def found(self, partition: Any, offsets: list[int]) -> Any:
        records = FoundRecords()
        records.offsets.extend(offsets)
        done = asyncio.Event()
        if not self.never_done:
            done.set()
        outcome = self.late_failure or SearchedLog(0, 1, records)
        return SimpleNamespace(partition=partition, outcome=outcome, done=done, waits_for=None)

    def forget(self, running: Any) -> None:
        self.forgotten.append(running)

    @contextmanager
    def search_everywhere(self, _parts: Any, partition: Any, terms: Any, end_offset: int) -> Iterator[Any]:
        assert end_offset == partition.log.log_end_offset
        assert isinstance(terms.selector, KeySelector)
        offsets = [offset for offset, key in enumerate(partition.log.keys) if key in terms.selector.keys]
        everywhere = self.found(partition, offsets)
        everywhere.running = SimpleNamespace(partition=partition)
        yield self.everywhere or everywhere

    # the eraser
    async def erase(self, request: ErasureRequest, rows: Any, deadline: float) -> None:
        assert deadline == self.loop.time() + ERASE_S
        [(row, erasure)] = rows
        row.error_code = self.erase_errors.pop(0) if self.erase_errors else NONE
        self.requests.append(request)
        offsets = list(erasure.outcome.records.offsets)
        if row.error_code == NONE:
            self.erased.append((request.erasure_id, offsets))
            log = erasure.running.partition.log
            for offset in offsets:
                log.keys[offset] = None
            log.keys.append(None)
            row.log_start_offset = log.log_start_offset
            row.erasures_end = log.log_end_offset if self.erasures_end is None else self.erasures_end


def standing_broker(test: Callable[[StandingBroker], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(standing_erasures, "StandingConfirmations", StubConfirmations)
            broker = StandingBroker(loop)
            step: Any = SimpleNamespace(operations=())
            plans = (ChangePlan(()), ChangePlan((step,)))

            async def commit(_metadata: Any, decide: Any, deadline: float) -> Any:
                assert deadline == loop.time() + ATTEMPT_S
                await asyncio.sleep(1)
                return broker.swept.pop(0) if broker.swept else decide()

            patch.setattr(standing_erasures, "decide_and_commit", commit)
            patch.setattr(standing_erasures, "plan_sweep_of_standing", lambda *_: plans[broker.ended])
            patch.setattr(standing_erasures, "is_compacted", lambda _log: broker.compacted)
            patch.setattr(standing_erasures, "why_not_erasable", lambda *_: broker.refusal)
            patch.setattr(standing_erasures, "why_not_searchable", lambda *_: broker.not_searchable)
            patch.setattr(standing_erasures, "searching_everywhere", broker.search_everywhere)
            await test(broker)

    run_simulation(main, 1)
