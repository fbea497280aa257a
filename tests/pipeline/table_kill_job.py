"""The job that `test_table_kills.py` kills: a topic into a table until nothing is left, with trimming at once.

`DIE_AT=MOMENT:NUMBER` kills the process by itself at the given occurrence of a moment:

    write           a task has written a row group (with Spark: its worker dies, and the job goes on)
    before-commit, after-commit, before-dead, after-dead        around the commit to the table, or to its dead letters
    columns         new columns were added
    before-trim, after-trim
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lowtide.admin.blocking import BlockingAdminClient
from lowtide.pipeline.table import job, loop, writing
from lowtide.pipeline.table.session import spark_workers
from lowtide.pipeline.table.trimming import TableTrimmer, TableTrimSettings
from lowtide.runtime.clock import SystemClock
from tests.pipeline.local_spark import SPARK
from tests.pipeline.table_jobs import TABLE, LocalJobs

MOMENT, _, NUMBER = os.environ.get("DIE_AT", "never:0").partition(":")


class Death:
    """Counts the occurrences of the moment. A file keeps all processes of a run from dying more than once."""

    def __init__(self, folder: str) -> None:
        self.left = int(NUMBER)
        self.note = Path(folder, "died")

    def at(self, moment: str) -> None:
        if moment != MOMENT:
            return
        self.left -= 1
        if self.left <= 0:
            with contextlib.suppress(FileExistsError):
                self.note.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)


def hooked(folder: str, tasks: Any) -> Any:
    """Runs tasks, and dies while it writes. It also runs in Spark's workers."""
    death, write = Death(folder), writing._OpenFile.write

    def dying_write(self: Any, rows: Any) -> None:
        write(self, rows)
        death.at("write")

    writing._OpenFile.write, before = dying_write, writing._OpenFile.write
    try:
        yield from writing.run_tasks(tasks)
    finally:
        writing._OpenFile.write = before


def around(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    inner = getattr(owner, name)

    def outer(*arguments: Any, **named: Any) -> Any:
        before(*arguments)
        result = inner(*arguments, **named)
        after(*arguments)
        return result

    setattr(owner, name, outer)


def main(address: str, topic: str, folder: str, rows_per_round: str, kind: str) -> None:
    death, jobs = Death(folder), LocalJobs(address, topic, Path(folder))

    def at_commit(when: str, table: Any, _requirements: Any, updates: Any) -> None:
        if any("Snapshot" in type(update).__name__ for update in updates):
            death.at(f"{when}-{'commit' if '.'.join(table.name()) == TABLE else 'dead'}")

    around(
        jobs.catalog, "commit_table", lambda *what: at_commit("before", *what), lambda *what: at_commit("after", *what)
    )
    around(job, "add_columns", lambda *_: None, lambda *_: death.at("columns"))
    around(BlockingAdminClient, "delete_records", lambda *_: death.at("before-trim"), lambda *_: death.at("after-trim"))
    trimmer = TableTrimmer(
        TableTrimSettings(after_ms=0), lambda: BlockingAdminClient(jobs.cluster.settings), SystemClock(), print
    )

    def catch_up(run: Callable[[Any], Any]) -> None:
        file_bytes = max(1 << 16, 16 * int(rows_per_round))  # Many records in tiny files would only measure manifests.
        made = jobs.job("json", run=run, rows_per_round_max=int(rows_per_round), file_bytes=file_bytes)
        part = loop.LoopPart(name=topic, job=made, trimmer=trimmer, load=jobs.table)
        loop.TableLoop([part], SystemClock(), threading.Event(), lambda *what: print(*what[1:], flush=True)).run(
            every_ms=None
        )

    if kind == "local":
        catch_up(lambda tasks: hooked(folder, tasks))
        return
    with spark_workers("local[2]", SPARK | {"spark.driver.memory": "512m"}) as workers:
        run_some = functools.partial(hooked, folder)
        catch_up(lambda tasks: workers.context.parallelize(tasks, len(tasks)).mapPartitions(run_some).collect())


if __name__ == "__main__":
    main(*sys.argv[1:6])
