"""Writes a topic into a table, round by round. A round reads on where the table ends, and is one snapshot.

The order within a round is what makes each record appear once: first the table of dead letters is committed, then the
table itself. If the job dies in between, the next round finds in the table of dead letters which records are there.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from lowtide.pipeline.cluster import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, BlockingCluster
from lowtide.pipeline.ranges import Positions
from lowtide.pipeline.table.evolving import RAW, add_columns, open_dead_table, open_table
from lowtide.pipeline.table.options import TableOptions
from lowtide.pipeline.table.progress import ProgressMissingError, progress_in
from lowtide.pipeline.table.round_table import LostRoundError, RoundTable
from lowtide.pipeline.table.rounds import (
    LogBounds,
    RoundPlan,
    bytes_per_record,
    check_topic_id,
    packed,
    plan_round,
    task_count,
)
from lowtide.pipeline.table.schemas.decoding import PREFIX
from lowtide.pipeline.tasks import DataLossError, FetchSettings, PlannedRange
from lowtide.protocol.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from lowtide.pipeline.table.writing import TaskOutput, WriteTask

log = logging.getLogger(__name__)

PASSES_MAX: Final = 20
"""How often the tasks of a round may find columns that the table lacks."""

SETTLE_MS: Final = 10_000
"""How long a partition may end below the progress: a new leader learns the end a moment after its election."""

SETTLE_PAUSE_S: Final = 0.2

Runner = Callable[[Sequence["WriteTask"]], Sequence["TaskOutput"]]
"""Runs tasks, and returns their results in any order."""


class RoundFailedError(Exception):
    """A round did not come to its end. The next one repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What a round has done."""

    outcome: str
    """`committed`; `idle` if nothing is new; `lost` if its files were thrown away because of another commit."""

    rows: int = 0
    dead: int = 0
    files: int = 0
    file_bytes: int = 0
    snapshot_id: int | None = None
    positions: Positions = field(default_factory=dict)
    """Where the table ends now."""
    is_behind: bool = False
    """Whether more records wait than one round may have."""
    reason: str = ""
    """Why it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """What the steps of one round share."""

    round_id: str
    main: RoundTable
    dead: RoundTable | None
    topic_id: TopicId
    plan: RoundPlan


class TableJob:
    """Writes one topic into one table."""

    def __init__(
        self, options: TableOptions, catalog: Catalog, cluster: BlockingCluster, run_all: Runner, parallelism: int
    ) -> None:
        """`options.schema` is a schema that `decoder_of` knows, not `auto`."""
        self._options = options
        self._catalog = catalog
        self._cluster = cluster
        self._run_all = run_all
        self._parallelism = max(parallelism, 1)
        self._may_leave_files = True
        """Whether rounds of this job may have died since it has looked for their files, at first those before it."""

    def round(self) -> RoundReport:
        """Reads what is new, writes it, and commits it.

        Errors: ProgressError, DataLossError and OptionError, which no repetition helps against; RoundFailedError,
        ClusterError, CommitUnknownError, and those of Spark, the catalog and the storage.
        """
        try:
            report = self._round()
        except BaseException:
            self._may_leave_files = True
            raise
        if report.outcome == "lost":
            self._may_leave_files = True
        return report

    def _round(self) -> RoundReport:
        this = self._begun()
        if this.plan.size == 0 and not this.plan.losses:
            return RoundReport(outcome="idle", positions=this.plan.start)
        results = self._written(this)
        files = [one for result in results for one in result.files]
        dead_files = [one for result in results for one in result.dead_files]
        until = this.plan.until
        try:
            if this.dead is not None and dead_files:
                try:
                    this.dead.commit(dead_files, this.topic_id, until, this.round_id)
                except BaseException:
                    this.main.delete(files)
                    raise
            snapshot = this.main.commit(files, this.topic_id, until, this.round_id)
        except LostRoundError as error:
            return RoundReport(outcome="lost", reason=str(error))
        self._tidy(this)
        return RoundReport(
            outcome="committed",
            rows=sum(one.record_count for one in files),
            dead=sum(one.record_count for one in dead_files),
            files=len(files),
            file_bytes=sum(one.file_size_in_bytes for one in files),
            snapshot_id=snapshot.snapshot_id,
            positions=until,
            is_behind=this.plan.is_behind,
        )

    def _tidy(self, this: _Round) -> None:
        """Deletes what rounds have left behind that died. They are certain to be dead after the commit of another one.

        It is done once after the start, and after each round that failed: it lists all files.
        """
        if not self._may_leave_files:
            return
        self._may_leave_files = False
        for table in (this.main, this.dead):
            if table is not None and (count := table.delete_dead_rounds()):
                log.info("table %s: %d files of rounds that died are deleted", table.name, count)

    # ------------------------------------------------------------------ where it begins
    def _begun(self) -> _Round:
        """Reads the tables and the log, and plans. Errors: those of `round`."""
        options, kind = self._options, self._options.schema.kind
        # The snapshots are read before the log: what an erasure removes, it removes from the log before its fence.
        main = self._found(open_table(self._catalog, options, kind))
        dead = None if kind == RAW else self._found(open_dead_table(self._catalog, options))
        topic = self._cluster.find_topics([options.topic], self._cluster.deadline())[options.topic]
        for table in (main, dead):
            check_topic_id(None if table is None else table.before, options.topic, topic.topic_id)
        places = [TopicPartition(options.topic, number) for number in topic.leaders]
        positions = self._positions(main, dead, places)
        bounds = self._bounds(places, positions)
        plan = plan_round(positions, bounds, options.rows_per_round_max)
        if plan.losses and not options.skips_lost:
            raise DataLossError(f"{plan.losses[0]}. With --on-data-loss skip the job goes on without them")
        for loss in plan.losses:
            log.warning("%s; the job goes on, because of --on-data-loss skip", loss)
        return _Round(round_id=uuid.uuid4().hex, main=main, dead=dead, topic_id=topic.topic_id, plan=plan)

    def _found(self, table: Table) -> RoundTable:
        """Returns a table with its progress. Errors: ProgressError."""
        try:
            return RoundTable(table, progress_in(table, self._options.topic))
        except ProgressMissingError:
            if self._options.start_at != "table":
                raise
            return RoundTable(table, None)

    def _bounds(self, places: Sequence[TopicPartition], positions: Positions) -> dict[TopicPartition, LogBounds]:
        """Returns what the log has. Errors: ClusterError."""
        deadline_ms = self._cluster.deadline(SETTLE_MS)
        while True:
            starts = self._cluster.list_offsets(dict.fromkeys(places, EARLIEST_TIMESTAMP), read_committed=True)
            ends = self._cluster.list_offsets(dict.fromkeys(places, LATEST_TIMESTAMP), read_committed=True)
            bounds = {place: LogBounds(starts[place].offset, ends[place].offset) for place in places}
            is_short = any(positions.get(place, 0) > one.end for place, one in bounds.items())
            if not is_short or self._cluster.deadline(0) >= deadline_ms:
                return bounds
            time.sleep(SETTLE_PAUSE_S)

    def _positions(self, main: RoundTable, dead: RoundTable | None, places: Sequence[TopicPartition]) -> Positions:
        """Returns where the table ends. The table has nothing yet of partitions that are newer than its progress."""
        if main.before is not None:
            return main.before.positions_of(places)
        if self._options.start_at != "table":
            return {}
        topic = self._options.topic
        rows = main.highest("" if dead is None else PREFIX, topic)
        letters = {} if dead is None else dead.highest("", topic)
        return {place: max(rows.get(place, 0), letters.get(place, 0)) for place in {*rows, *letters}}

    # ------------------------------------------------------------------ writing
    def _written(self, this: _Round) -> list[TaskOutput]:
        """Writes the files of a round, or none. Errors: those of `round`."""
        done: list[TaskOutput] = []
        try:
            self._run_passes(this, done)
        except BaseException:
            this.main.delete([file for one in done for file in one.files])
            if this.dead is not None:
                this.dead.delete([file for one in done for file in one.dead_files])
            raise
        return sorted(done, key=lambda one: one.number)

    def _run_passes(self, this: _Round, done: list[TaskOutput]) -> None:
        """Runs the tasks; again those that found new columns, once the table has them. Adds results to `done`.

        Errors: DataLossError, RoundFailedError; those of `round`.
        """
        from lowtide.pipeline.table.schemas.evolution import union_of_columns  # noqa: PLC0415 - an extra
        from lowtide.pipeline.table.writing import target_of  # noqa: PLC0415

        tasks = self._tasks(this)
        for _ in range(PASSES_MAX):
            results = sorted(self._run_all(tasks), key=lambda one: one.number)
            done += [one for one in results if not len(one.new_columns)]
            lost = next((one.lost for one in results if one.lost is not None), None)
            if lost is not None:
                raise DataLossError(lost)
            missing = [one for one in results if len(one.new_columns)]
            if not missing:
                return
            schema = tasks[0].main.schema
            add_columns(this.main.table, union_of_columns(schema, [one.new_columns for one in missing]))
            again = {one.number for one in missing}
            now = target_of(this.main.table, this.main.base)
            tasks = [replace(task, main=now) for task in tasks if task.number in again]
        raise RoundFailedError(f"the tasks found columns that table {self._options.table} lacks {PASSES_MAX} times")

    def _tasks(self, this: _Round) -> list[WriteTask]:
        """Returns the tasks of a round."""
        from lowtide.pipeline.table.writing import WriteTask, target_of  # noqa: PLC0415 - an extra

        options, dead = self._options, this.dead
        skipped: Mapping[int, Sequence[int]] = {}
        if dead is not None and dead.before is not None:
            skipped = dead.offsets_between(this.plan.start, dead.before.positions)
        size = bytes_per_record(this.main.summary)
        count = task_count(this.plan.size, size, options.file_bytes, self._parallelism)
        return [
            WriteTask(
                round_id=this.round_id,
                number=number,
                ranges=[PlannedRange(one, this.topic_id) for one in ranges],
                client=options.client,
                fetch=FetchSettings(include_headers=True, fail_on_data_loss=not options.skips_lost),
                schema=options.schema,
                main=target_of(this.main.table, this.main.base),
                dead=None if dead is None else target_of(dead.table, dead.base),
                skipped={
                    one.partition.partition: skipped[one.partition.partition]
                    for one in ranges
                    if one.partition.partition in skipped
                },
                file_bytes=options.file_bytes,
            )
            for number, ranges in enumerate(packed(this.plan.ranges, count))
        ]
