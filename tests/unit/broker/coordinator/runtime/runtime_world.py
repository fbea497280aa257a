"""A runtime over partitions, clock, loop and worker that a test moves by hand; its states note all calls."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from lowtide.broker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from lowtide.broker.coordinator.runtime.effects import Effects
from lowtide.broker.coordinator.runtime.shard import CoordinatedTopic, Shard
from lowtide.broker.coordinator.runtime.timers import Timers
from lowtide.broker.pending import Pending
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import GroupMetadata
from lowtide.protocol.types import TopicPartition
from lowtide.storage.log.validation.validator import ValidatedBatch

TOPIC = "__consumer_offsets"
WALL_MS = 1_000_000
COMMIT_TIMEOUT_MS = 5_000


class State:
    """Notes what it is asked; `on_due` does what is due."""

    settings = SimpleNamespace(commit_timeout_ms=COMMIT_TIMEOUT_MS, load_buffer_bytes=1 << 20)

    def __init__(self) -> None:
        self.timers: Timers[str] = Timers()
        self.events: list[Any] = []
        self.on_due: Callable[[str, Effects], None] = lambda _key, _effects: None
        self.count = 0

    def apply(self, change: Any, offset: int) -> None:
        self.events.append(("apply", change, offset))

    def note(self, change: Any, offset: int) -> None:
        self.events.append((change, offset))

    def on_loaded(self, effects: Effects) -> None:
        self.events.append("loaded")
        self.timers.schedule("expiry", effects.now_ms + 1_000_000)

    def on_unloaded(self, _effects: Effects) -> None:
        self.events.append("unloaded")

    def on_timer(self, key: str, effects: Effects) -> None:
        self.events.append((key, effects.now_ms))
        self.on_due(key, effects)


def partition_of(number: int, **fields: Any) -> Any:
    """A partition that is led here without other replicas, whose log is empty."""
    log = SimpleNamespace(
        log_start_offset=0, log_end_offset=0, high_watermark=0, recovery_point=0, offline=False, flush_is_due=False,
        config=SimpleNamespace(max_message_bytes=1 << 20),
    )  # fmt: skip
    made = {
        "topic_partition": TopicPartition(TOPIC, number), "log": log, "led_since": 5, "is_leader": True,
        "leadership": None, "has_enough_in_sync": True,
    }  # fmt: skip
    return SimpleNamespace(**(made | fields))


class Replicas:
    """The partitions; what is appended to those with a `leadership` is committed by `World.commit` only."""

    def __init__(self) -> None:
        self.partitions: dict[int, Any] = {}
        self.fails: ErrorCode | None = None
        """The error of all appends after the first `takes` batches."""
        self.takes = 0
        self.appended: list[int] = []
        """The records of each batch."""
        self.asked: list[tuple[Any, int, Callable[[ErrorCode], None]]] = []
        self.turns = SimpleNamespace(run=self._run)
        self.jobs: list[Any] = []

    def _run(self, steps: Any, on_done: Callable[[None], None], on_failed: Callable[[Exception], None]) -> None:
        self.jobs.append((steps, on_done, on_failed))

    def find(self, topic: str, partition: int) -> Any:
        assert topic == TOPIC
        return self.partitions.get(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def append(self, partition: Any, batch: ValidatedBatch, wall_ms: int) -> Any:
        assert wall_ms >= WALL_MS
        if self.fails is not None and len(self.appended) >= self.takes:
            return self.fails
        self.appended.append(batch.record_count)
        partition.log.log_end_offset += batch.record_count
        if partition.leadership is None:
            partition.log.high_watermark = partition.log.log_end_offset
        return object()

    def when_committed(self, partition: Any, end_offset: int, on_committed: Callable[[ErrorCode], None]) -> None:
        self.asked.append((partition, end_offset, on_committed))


class Handle:
    """A timer of the loop."""

    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delay_s, self.call, self.cancelled = delay_s, call, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """The runtime, and partitions 0 to 2."""

    def __init__(self, **fields: Any) -> None:
        self.now_ms = 100
        self.replicas = Replicas()
        self.handles: list[Handle] = []
        self.work: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        loop: Any = SimpleNamespace(call_later=self._call_later, call_soon=lambda call: call())
        worker: Any = SimpleNamespace(submit=lambda call, on_done: self.work.append((call, on_done)))
        clock: Any = SimpleNamespace(monotonic_ms=lambda: self.now_ms, wall_ms=lambda: WALL_MS + self.now_ms)
        log = SimpleNamespace(
            warning=lambda event, **words: self.lines.append(("warning", event, words)),
            error=lambda event, **words: self.lines.append(("error", event, words)),
        )
        self.runtime: CoordinatorRuntime[State] = CoordinatorRuntime(
            CoordinatedTopic(name=TOPIC, make_state=State),
            replicas=self.replicas,
            clock=clock,
            loop=loop,
            worker=worker,
            log=log,
        )  # stand-ins
        self.replicas.partitions = {number: partition_of(number, **fields) for number in range(3)}

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Handle:
        self.handles.append(Handle(delay_s, call))
        return self.handles[-1]

    def shard(self, number: int = 0) -> Shard[State]:
        """The shard of a partition, which is loaded."""
        found = self.runtime.find(number)
        assert isinstance(found, Shard)
        return found

    def keep(self, shard: Shard[State], *groups: str) -> list[ErrorCode]:
        """Appends a record for each of these groups. The outcome is put into the returned list."""
        effects, outcomes = self.runtime.effects(), list[ErrorCode]()
        for group in groups:
            effects.keep_group(group, None)
        effects.then.append(lambda error, _: outcomes.append(error))
        self.runtime.carry_out(shard, effects)
        return outcomes

    def commit(self, shard: Shard[State], end_offset: int, error: ErrorCode = ErrorCode.NONE) -> None:
        """The log is committed up to `end_offset` (exclusive): who asked to hear of that does."""
        shard.partition.log.high_watermark = end_offset
        due = [
            row
            for row in self.replicas.asked
            if row[0] is shard.partition and (row[1] <= end_offset or error != ErrorCode.NONE)
        ]
        self.replicas.asked = [row for row in self.replicas.asked if row not in due]
        for _, _, on_committed in due:
            on_committed(error)

    def timer(self) -> Handle | None:
        """The timer of the loop that is set."""
        set_ones = [handle for handle in self.handles if not handle.cancelled]
        assert len(set_ones) <= 1, "there is one timer for all coordinators"
        return set_ones[0] if set_ones else None

    def fire(self, now_ms: int) -> None:
        """The timer is due."""
        self.now_ms = now_ms
        handle = self.timer()
        assert handle is not None
        self.handles.remove(handle)
        handle.call()


def removal(group: str) -> GroupMetadata:
    """What `World.keep` notes."""
    return GroupMetadata(group, None)


def pending() -> Pending[Any]:
    return Pending()
