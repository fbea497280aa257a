"""A topic as an Iceberg table during a soak: `lowtide table run` writes and trims, and the table is compared.

Each offset below the log start must be in the table, and none may be there twice. `python -m tests.soak.tabling
FOLDER STARTS` compares once, with the log starts as JSON, and prints the rows of the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.pipeline.local_spark import python_environment

from .kept import ROOT
from .programs import TABLED
from .run import SMALL, Run

TABLE, PARTITIONS = "soak.records", 2
CONFIGS = SMALL | {"retention.ms": "-1"}
"""Only the job deletes from the topic."""

EVERY, TRIM_AFTER = "60s", "60s"
CHECK_EACH_S = 600.0
COMPACT_EACH = 3
"""Compactions and expiries of snapshots come with every so manieth check."""

AGAIN_S = 5.0
END_LIMIT_S = 120.0
LINES_KEPT = 20
SPARK = ("spark.driver.memory=512m", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


class TableWork:
    """The job, which is started again when it ends, and the comparisons."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._folder = run.folder.path / "table"
        self._properties = self._folder / "client.properties"
        self._process: asyncio.subprocess.Process | None = None
        self._noise: list[str] = []

    async def write(self) -> None:
        """Runs the job until the end. A job that a broker's restart ended begins again."""
        run = self._run
        await run.topic(TABLED, PARTITIONS, CONFIGS)
        self._folder.mkdir(exist_ok=True)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in run.cluster.client_properties.items()))
        words = ["run", TABLED, "--every", EVERY, "--trim", "--trim-after", TRIM_AFTER, "--master", "local[1]"]
        words += [word for setting in SPARK for word in ("--spark-conf", setting)]
        while run.goes_on:
            self._process = await self._start(*words, "-o", "json")
            reading = asyncio.gather(self._read_rounds(self._process), self._read_noise(self._process))
            ended = asyncio.create_task(self._process.wait())
            while not ended.done() and await run.pause(1.0):
                pass
            if ended.done() and run.goes_on:
                run.counts["table jobs that ended"] += 1
                run.reported[f"table job: {ended.result()}, {self._noise[-1:]}"] += 1
                await run.pause(AGAIN_S)
            await self._end()
            await ended
            await reading

    async def compare(self) -> None:
        """Compares now and then, and once at the end. Errors: AssertionError if the table is wrong."""
        run, number = self._run, 0
        while await run.pause(CHECK_EACH_S):
            await self._compare()
            number += 1
            if number % COMPACT_EACH == 0:
                await self._maintain("compact")
                await self._maintain("expire", "--older-than", "30m")
        await self._compare()

    def kill(self) -> None:
        """SIGKILL to the job, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    # ------------------------------------------------------------------ the job
    async def _start(self, *words: str) -> asyncio.subprocess.Process:
        catalog = ["--catalog", f"sqlite:///{self._folder}/catalog.db", "--table", TABLE]
        where = ["--command-config", str(self._properties)] if words[0] == "run" else []
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lowtide.cli.main", "table", *words, *catalog, *where),
            env={**os.environ, **python_environment(self._folder)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    async def _read_rounds(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                self._run.counts["table rows"] += json.loads(line).get("rows") or 0
                self._run.counts["table rounds"] += 1

    async def _read_noise(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self._noise = [*self._noise[-LINES_KEPT:], line.decode(errors="replace").rstrip("\n")]

    async def _end(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(END_LIMIT_S):
                    await self._process.wait()
            except TimeoutError:
                self.kill()

    # ------------------------------------------------------------------ comparisons
    async def _compare(self) -> None:
        starts = {}
        for partition in range(PARTITIONS):
            row = await self._run.cluster.until_partition(TABLED, lambda row: row.leader_id >= 0, partition)
            with contextlib.suppress(OSError):
                bounds = await self._run.cluster.bounds(row.leader_id, TABLED, partition=partition)
                starts[partition] = bounds[0] if isinstance(bounds, tuple) else 0
        if not any(starts.values()):
            return
        words = ("-m", "tests.soak.tabling", str(self._folder), json.dumps(starts))
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        told, noise = await process.communicate()
        assert process.returncode == 0, f"the table is not what was trimmed: {noise.decode()[-2000:]}"
        self._run.counts["tables compared"] += 1
        assert json.loads(told)["rows"] > 0

    async def _maintain(self, *words: str) -> None:
        """Compacts or expires. That another writer came first is no failure."""
        process = await self._start(*words)
        _, noise = await process.communicate()
        name = f"table {words[0]}" + (" refused" if process.returncode else "")
        self._run.counts[name] += 1
        if process.returncode:
            self._run.reported[f"{name}: {noise.decode()[-300:]}"] += 1


def compare_once(folder: Path, starts: dict[str, int]) -> int:
    """Returns the number of rows. Errors: AssertionError if an offset below a log start is missing, or any is twice."""
    import pyarrow.compute as pc
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", uri=f"sqlite:///{folder}/catalog.db")
    names = ("kafka_partition", "kafka_offset")
    rows = catalog.load_table(TABLE).scan(selected_fields=names).to_arrow()
    for partition, start in starts.items():
        mine = rows.column(names[1]).filter(pc.equal(rows.column(names[0]), int(partition)))
        assert pc.count_distinct(mine).as_py() == len(mine), f"partition {partition} has records twice"
        below = pc.sum(pc.less(mine, start)).as_py() or 0
        assert below == start, f"partition {partition} begins at {start}, but the table has {below} records below"
    catalog.close()
    return len(rows)


if __name__ == "__main__":
    print(json.dumps({"rows": compare_once(Path(sys.argv[1]), json.loads(sys.argv[2]))}))
