"""Repeats the rounds of jobs, trims behind them, and decides which errors end the whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table.committing import CommitUnknownError
from lowtide.pipeline.table.job import RoundReport, TableJob
from lowtide.pipeline.table.progress import ProgressError
from lowtide.pipeline.table.session import SparkFailedError
from lowtide.pipeline.table.trimming import TableTrimmer
from lowtide.pipeline.tasks import DataLossError
from lowtide.runtime.clock import Clock

log = logging.getLogger(__name__)

FAILURES_MAX: Final = 10
"""After so many failed rounds in a row the job ends. Whoever has started it starts it again."""

FIRST_PAUSE_MS: Final = 500
PAUSE_MAX_MS: Final = 30_000
"""Between two attempts: it doubles with each failure."""

TRIM_FINISH_MS: Final = 30_000
"""How long the end of the job waits for the last trim."""

FINAL: Final = (DataLossError, OptionError, ProgressError, SparkFailedError, ImportError)
"""What no repetition helps against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPart:
    """A job, with what trims behind it."""

    name: str
    job: TableJob
    trimmer: TableTrimmer | None
    load: Callable[[], Any]
    """Loads the table."""


class TableLoop:
    """Runs jobs in turn, in one thread."""

    def __init__(
        self,
        parts: Sequence[LoopPart],
        clock: Clock,
        stop: threading.Event,
        report: Callable[[LoopPart, RoundReport, int], None],
    ) -> None:
        """`report` gets each round that is done, with its duration in milliseconds."""
        self._parts = parts
        self._clock = clock
        self._stop = stop
        self._report = report

    def run(self, *, every_ms: int | None) -> None:
        """Runs a round of each job every so often, until `stop` is set. For None: until nothing is left to read.

        Errors: those of `FINAL`; the last error of a round after `FAILURES_MAX` failures in a row.
        """
        while not self._stop.is_set():
            began_ms = self._clock.monotonic_ms()
            for part in self._parts:
                self._catch_up(part)
            if every_ms is None:
                break
            self._stop.wait(max(every_ms - (self._clock.monotonic_ms() - began_ms), 0) / 1000)
        for part in self._parts:
            if part.trimmer is not None and not part.trimmer.finish(TRIM_FINISH_MS):
                log.warning("%s: the last trim is not done after %d s", part.name, TRIM_FINISH_MS // 1000)

    def _catch_up(self, part: LoopPart) -> None:
        """Runs rounds until a job is not behind, and trims. Errors: those of `run`."""
        failures = losses = 0
        while not self._stop.is_set():
            began_ms = self._clock.monotonic_ms()
            try:
                report = part.job.round()
                self._report(part, report, self._clock.monotonic_ms() - began_ms)
                if part.trimmer is not None:
                    part.trimmer.on_table(part.load().metadata)
            except FINAL:
                raise
            except Exception as error:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                kept = ", and its files stay" if isinstance(error, CommitUnknownError) else ""
                log.warning("%s: a round failed%s, and is repeated: %s", part.name, kept, first_line(error))
                self._pause(failures)
                continue
            if report.outcome == "lost":
                # Another job writes the same table, or an erasure passed by. Two jobs must not race for each round.
                losses += 1
                log.warning("%s: %s; the next round begins anew", part.name, report.reason)
                self._pause(min(losses, FAILURES_MAX))
                continue
            if not report.is_behind:
                return
            failures = losses = 0

    def _pause(self, failures: int) -> None:
        self._stop.wait(min(FIRST_PAUSE_MS << (failures - 1), PAUSE_MAX_MS) / 1000)


def first_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its text; of Spark's errors the cause in Python."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in reversed(lines) if line.startswith(_OURS)), lines[0] if lines else "")
    return f"{type(error).__name__}: {cause}"


_OURS: Final = ("lowtide.", "pyarrow.", "OSError", "PermissionError", "FileNotFoundError")
"""How the last line of a traceback begins that names the cause within an error of Spark."""
