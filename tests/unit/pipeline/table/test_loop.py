"""Which errors end the job, and what is repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table import loop
from lowtide.pipeline.table.job import RoundReport
from lowtide.pipeline.table.loop import FAILURES_MAX, LoopPart, TableLoop, first_line
from lowtide.pipeline.table.progress import ProgressError
from lowtide.pipeline.table.session import SparkFailedError
from lowtide.pipeline.tasks import DataLossError
from lowtide.runtime.clock import SystemClock


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "PAUSE_MAX_MS", 0)


class Scripted:
    """A job whose rounds end as they are told, the last one again and again, and its trimmer."""

    def __init__(self, *outcomes: RoundReport | Exception) -> None:
        self.outcomes = list(outcomes)
        self.rounds = self.trims = self.finished = 0

    def round(self) -> RoundReport:
        self.rounds += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def on_table(self, _metadata) -> None:
        self.trims += 1

    def finish(self, _timeout_ms: int) -> bool:
        self.finished += 1
        return True


def run(*jobs: Scripted, every_ms: int | None = None, on_report: Callable[..., None] | None = None) -> None:
    stop = threading.Event()
    parts = [LoopPart(name="t", job=job, trimmer=job, load=lambda: SimpleNamespace(metadata=None)) for job in jobs]
    TableLoop(
        parts, SystemClock(), stop, on_report or (lambda *_: None) if every_ms is None else lambda *_: stop.set()
    ).run(every_ms=every_ms)


IDLE, BEHIND = RoundReport(outcome="idle"), RoundReport(outcome="committed", is_behind=True)
LOST = RoundReport(outcome="lost", reason="another job")


def test_rounds_follow_each_other_until_nothing_waits():
    job = Scripted(BEHIND, BEHIND, RoundReport(outcome="committed"))
    run(job)
    assert (job.rounds, job.trims, job.finished) == (3, 3, 1)


def test_each_job_has_its_turn():
    first, second = Scripted(IDLE), Scripted(BEHIND, IDLE)
    run(first, second)
    assert (first.rounds, second.rounds) == (1, 2)


@pytest.mark.parametrize("kind", [DataLossError, OptionError, ProgressError, SparkFailedError, ImportError])
def test_what_no_repetition_helps_against_ends_the_job_at_once(kind):
    job = Scripted(kind("no"))
    with pytest.raises(kind):
        run(job)
    assert job.rounds == 1


def test_other_failures_are_repeated_so_many_times(caplog):
    job = Scripted(OSError("disk full"))
    with pytest.raises(OSError, match="disk full"):
        run(job)
    assert job.rounds == FAILURES_MAX
    assert "t: a round failed, and is repeated: OSError: disk full" in caplog.text
    healed = Scripted(OSError("disk full"), OSError("disk full"), IDLE)
    run(healed)
    assert healed.rounds == 3


def test_a_lost_round_begins_anew_however_often(caplog):
    job = Scripted(*[LOST] * 20, IDLE)
    run(job)
    assert job.rounds == 21
    assert "another job; the next round begins anew" in caplog.text


def test_a_failure_after_lost_rounds_does_not_end_the_job():
    job = Scripted(*[LOST] * FAILURES_MAX, OSError("once"), IDLE)
    run(job)
    assert job.rounds == FAILURES_MAX + 2


def test_it_stops_when_it_is_told():
    job = Scripted(BEHIND)
    run(job, every_ms=3_600_000)
    assert (job.rounds, job.finished) == (1, 1)


def test_of_an_error_of_spark_the_cause_is_told():
    text = "An error occurred.\n: Job aborted\n  at java\nlowtide.pipeline.cluster.ClusterError: away\n\n\tat x"
    assert first_line(RuntimeError(text)) == "RuntimeError: lowtide.pipeline.cluster.ClusterError: away"
    assert first_line(RuntimeError("")) == "RuntimeError: "
