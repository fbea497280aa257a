"""The positions of a stream: where it begins, where its next batch ends, and what it has consumed.

Spark calls, in this order: `initial`; `latest(start)` until there are new records; `planned(start, end)`, and the tasks
read; then `latest(start)` with the end of the committed batch as its start; and when the next batch begins,
`committed` with that end. So `start` shows at once that a batch is durable, and `committed` one batch later. Traps,
each with a test:

- Spark calls `initial` twice in the first batch, and again when it repeats that batch after a crash. The first answer
  is kept, also in the end of the first batch (`@startedAt`). Otherwise a stream that begins at the latest offsets would
  lose the records that arrived between the calls.
- The initial offset is a start like any other. It does not mean that anything was consumed.
- An idle query calls `latest` about a hundred times a second, so answers of the cluster are kept for a while.
- Spark compares offsets as text. Without new records, `latest` returns exactly the start.

Sources: Spark's MicroBatchExecution, KafkaMicroBatchStream.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lowtide.pipeline.cluster import BlockingCluster
from lowtide.pipeline.planning import Planner, ReadTarget
from lowtide.pipeline.ranges import (
    STARTED_AT,
    TOPIC_IDS,
    Positions,
    QueryProgress,
    positions_from_json,
    positions_to_json,
    rate_limited,
)
from lowtide.pipeline.read_options import ReadOptions
from lowtide.pipeline.tasks import PlannedRange
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition, parse_topic_id, topic_id_text
from lowtide.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from lowtide.pipeline.trim import Trimmer

Json = dict[str, Any]

LATEST_FOR_MS: Final = 100
"""How long the ends of the partitions are kept before they are requested again."""

SELECTED_FOR_MS: Final = 1000
"""How long the list of partitions is kept before it is requested again."""


class StreamPositions:
    """The driver's side of a stream, for one run of the query."""

    def __init__(self, planner: Planner, options: ReadOptions, trimmer: Trimmer | None, clock: Clock) -> None:
        self._planner = planner
        self._options = options
        self._trimmer = trimmer
        self._clock = clock
        self._initial: Positions | None = None
        self._selected = ReadTarget((), {})
        self._latest: Positions = {}
        self._asked_ms: int | None = None
        self._selected_ms: int | None = None
        self._target: Positions | None = None
        """The end of an `availableNow` run."""
        self._last_batch_ms: int | None = None
        self._consumed: QueryProgress | None = None

    # ------------------------------------------------------------------ calls of Spark
    def initial(self) -> Json:
        """Returns where a query without a checkpoint begins. The answer is always the same.

        Errors: those of the planner.
        """
        if self._initial is None:
            self._selected = self._planner.select()
            self._initial = self._planner.resolve(self._options.starting, self._selected.partitions, "starting")
        return self._as_json(self._initial)

    def prepare_available_now(self) -> None:
        """Sets the present ends of the partitions as the end of the query. Errors: those of the planner."""
        self._selected = self._planner.select()
        self._target = self._planner.latest(self._selected.partitions)

    def latest(self, start_json: Mapping[str, Any], rows_max: int | None = None, rows_min: int | None = None) -> Json:
        """Returns where the batch that begins at `start_json` ends, or `start_json` if there is no batch.

        A batch has at most `rows_max` rows, and waits until there are `rows_min` or until it is late. Without limits it
        has all rows. Errors: DataLossError if a topic was created again; those of the planner.
        """
        start = positions_from_json(start_json)
        self._on_start(start, _topic_ids(start_json))
        ends = self._known_ends(start)
        begins = self._begins(start, start_json)
        end = start if self._waits_for_more(begins, ends, rows_min) else _limited(begins, ends, rows_max)
        if end == start:
            if self._target is not None and self._trimmer is not None:
                self._trimmer.finish(self._options.trim.timeout_ms)
            return dict(start_json)
        made = self._as_json(end)
        if start == self._initial and not self._options.starting.is_earliest:
            made[STARTED_AT] = positions_to_json(start)
        return made

    def reported_latest(self) -> Json | None:
        """Returns where the partitions end, for Spark's progress reports."""
        return positions_to_json(self._latest) if self._latest else None

    def planned(self, start_json: Mapping[str, Any], end_json: Mapping[str, Any]) -> list[PlannedRange]:
        """Returns the tasks of a batch; the same for the same offsets, also after a crash.

        Errors: DataLossError, those of the planner.
        """
        start, end = positions_from_json(end_json.get(STARTED_AT, start_json)), positions_from_json(end_json)
        ids, old_ids = _topic_ids(end_json), _topic_ids(start_json)
        # `latest` has reported topics that were created again.
        replaced = {topic for topic, old_id in old_ids.items() if ids.get(topic, old_id) != old_id}
        start = {partition: offset for partition, offset in start.items() if partition.topic not in replaced}
        gone = sorted(set(start) - set(end))
        if gone:
            self._planner.on_lost(
                f"{', '.join(map(str, gone))} cannot be read any further: the topic has no such partition any more"
            )
        added = [partition for partition in end if partition not in start]
        if added:
            start |= self._beginnings_of(added)
        return self._planner.plan(start, end, ids or self._selected.topic_ids)

    def committed(self, end_json: Mapping[str, Any]) -> None:
        """Notes that Spark has committed everything below `end_json`. Never raises."""
        self._consume(positions_from_json(end_json), _topic_ids(end_json))

    # ------------------------------------------------------------------ parts
    def _on_start(self, start: Positions, ids: Mapping[str, TopicId]) -> None:
        """Treats the start as consumed: it is the end of the last committed batch, unless the query began there.

        This is wrong with asynchronous progress tracking, which a source cannot see, but Spark refuses it with
        `availableNow`.
        """
        if start != self._initial and (self._options.trim.is_eager or self._target is not None):
            self._consume(start, ids)
        elif self._consumed is not None and self._trimmer is not None:
            self._trimmer.offer(self._consumed)

    def _consume(self, positions: Positions, ids: Mapping[str, TopicId]) -> None:
        if self._trimmer is not None:
            self._consumed = QueryProgress(positions, ids)
            self._trimmer.offer(self._consumed)

    def _known_ends(self, start: Positions) -> Positions:
        """Returns the ends of the partitions as last received; for `availableNow`, their ends when it began."""
        if self._target is not None:
            self._latest = self._target
            return self._target
        now_ms = self._clock.monotonic_ms()
        if self._asked_ms is None or now_ms - self._asked_ms >= LATEST_FOR_MS:
            if self._selected_ms is None or now_ms - self._selected_ms >= SELECTED_FOR_MS:
                self._selected, self._selected_ms = self._planner.select(), now_ms
            self._latest = self._planner.latest(self._selected.partitions)
            for _ in range(self._options.offset_attempts - 1):
                if not self._is_behind(start):
                    break
                time.sleep(self._options.offset_retry_ms / 1000)
                self._selected = self._planner.select()
                self._latest = self._planner.latest(self._selected.partitions)
            self._asked_ms = self._clock.monotonic_ms()
        return self._latest

    def _is_behind(self, start: Positions) -> bool:
        """Returns whether the cluster has returned ends below what the query has already read.

        A new leader may not know its high watermark yet (KAFKA-7703), and a broker may not know a new partition.
        """
        return any(
            self._latest.get(partition, -1) < offset
            for partition, offset in start.items()
            if partition.topic in self._selected.topic_ids
        )

    def _begins(self, start: Positions, start_json: Mapping[str, Any]) -> Positions:
        """Returns where to read each present partition from. Errors: DataLossError."""
        begins = dict(start)
        for topic, old_id in _topic_ids(start_json).items():
            new_id = self._selected.topic_ids.get(topic, old_id)
            if new_id not in (old_id, ZERO_TOPIC_ID):
                self._planner.on_lost(f"topic {topic} was deleted and created again since the query read it last")
                begins = {partition: offset for partition, offset in begins.items() if partition.topic != topic}
        added = [partition for partition in self._selected.partitions if partition not in begins]
        return begins | self._planner.earliest(added)

    def _waits_for_more(self, begins: Positions, ends: Positions, rows_min: int | None) -> bool:
        """Returns whether to wait for more rows before the next batch. Source: KafkaMicroBatchStream.delayBatch."""
        now_ms = self._clock.monotonic_ms()
        if rows_min is not None and self._target is None and self._last_batch_ms is not None:
            is_late = now_ms - self._last_batch_ms >= self._options.trigger_delay_max_ms
            count = sum(max(end - begins.get(partition, 0), 0) for partition, end in ends.items())
            if not is_late and count < rows_min:
                return True
        self._last_batch_ms = now_ms
        return False

    def _beginnings_of(self, partitions: list[TopicPartition]) -> Positions:
        """Returns the beginnings of new partitions, which should be 0. Errors: DataLossError."""
        begins = self._planner.earliest(partitions)
        for partition, offset in begins.items():
            if offset:
                self._planner.on_lost(f"the new partition {partition} begins at offset {offset} instead of 0")
        return begins

    def _as_json(self, positions: Positions) -> Json:
        made = positions_to_json(positions)
        if self._options.trim.trims:
            ids = {topic: topic_id for topic, topic_id in sorted(self._selected.topic_ids.items()) if topic in made}
            made[TOPIC_IDS] = {
                topic: topic_id_text(topic_id) for topic, topic_id in ids.items() if topic_id != ZERO_TOPIC_ID
            }
        return made


def stream_positions(options: ReadOptions) -> StreamPositions:
    """Creates the driver's side of a stream, with its own connections."""
    clock = SystemClock()
    trimmer = None
    if options.trim.trims or options.trim.commit_group is not None:
        from lowtide.admin.blocking import BlockingAdminClient  # noqa: PLC0415 - most queries do not trim
        from lowtide.pipeline.trim import Trimmer  # noqa: PLC0415 as above

        trimmer = Trimmer(options.trim, lambda: BlockingAdminClient(options.client), clock)
    return StreamPositions(Planner(BlockingCluster(options.client, clock), options), options, trimmer, clock)


def _limited(begins: Positions, ends: Positions, rows_max: int | None) -> Positions:
    """Returns where the next batch ends."""
    if rows_max is None:
        return dict(ends)
    return rate_limited({partition: begins.get(partition, 0) for partition in ends}, ends, rows_max)


def _topic_ids(value: Mapping[str, Any]) -> dict[str, TopicId]:
    return {topic: parse_topic_id(text) for topic, text in value.get(TOPIC_IDS, {}).items()}
