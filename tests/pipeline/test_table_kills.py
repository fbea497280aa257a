"""Every record once in the table or in its dead letters, with SIGKILL of driver, executors and broker at any moment.

The topic is trimmed as soon as the table has the records. After each kill the log start of each partition is compared
with the table: every offset below it must be there. At the end every offset is there once.

`KILLS=n` is the number of kills, `SEED=n` repeats the moments, `RECORDS=n` the records of one life. With `SPARKS=n` one
life of n is one of Spark; the others run the tasks in the driver, which starts in a fraction of the time.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer

from lowtide.pipeline.table.committing import HeadMovedError, TableChange, commit_change
from lowtide.pipeline.table.files import round_of
from lowtide.pipeline.table.loose import loose_files
from lowtide.pipeline.table.progress import ROUND, carried, progress_of, properties_of
from lowtide.pipeline.table.schemas.decoding import PREFIX
from tests.campaign.struck import strike

from .broker_process import BrokerProcess
from .conftest import make_topic
from .local_spark import python_environment
from .table_jobs import TABLE, LocalJobs
from .test_kills import session_of

KILLS = int(os.environ.get("KILLS", "3"))
SEED = int(os.environ.get("SEED", "7"))
RECORDS = int(os.environ.get("RECORDS", "400"))
SPARKS = int(os.environ.get("SPARKS", "3"))
LIMIT_S = 300.0 + KILLS * RECORDS / 5_000
TOPIC = "numbers"
PARTITIONS = 2
ROOT = Path(__file__).resolve().parents[2]
DEAD = f"{TABLE}_dead_letters"

MOMENTS = (
    "write",
    "before-commit",
    "after-commit",
    "before-dead",
    "after-dead",
    "columns",
    "before-trim",
    "after-trim",
    "random",
    "broker",
    "twice",
)
"""See `table_kill_job.py`; `random` is any moment, `broker` kills the broker, `twice` runs two jobs and kills one."""


class Run:
    """One topic and one table over all lives of the job."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder, self.broker = folder, broker
        self.random = random.Random(SEED)
        self.written = [0] * PARTITIONS
        self.jobs = LocalJobs(broker.address, TOPIC, folder)
        limits = {"queue.buffering.max.messages": max(100_000, 2 * RECORDS)}
        self._producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, **limits})

    def write(self, count: int, life: int) -> None:
        """Writes records; each seventh is no JSON, and some have a new column or a type that conflicts."""
        for number in range(count):
            value = f'{{"n": {number}, "life": "{life}"}}'
            if number % 7 == 3:
                value = f"bad {number}"
            elif number % 50 == 49:
                value = f'{{"c{life % 20}": {number}}}'
            elif number % 50 == 48:
                value = '{"n": "text"}'
            self._producer.produce(TOPIC, value, partition=number % PARTITIONS)
            self.written[number % PARTITIONS] += 1
            if number % 10_000 == 0:
                self._producer.poll(0)
        assert self._producer.flush(LIMIT_S) == 0

    def start(self, die_at: str, kind: str) -> subprocess.Popen[bytes]:
        (self.folder / "died").unlink(missing_ok=True)
        rows = str(max(RECORDS // 4, 50))
        command = [sys.executable, str(Path(__file__).with_name("table_kill_job.py")), self.broker.address, TOPIC]
        env = {**os.environ, **python_environment(self.folder), "DIE_AT": die_at, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
        with (self.folder / "job.log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.folder), rows, kind],
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def words(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")[-3000:]

    def progress(self) -> list[int]:
        """Returns up to where the table has each partition."""
        if not self.jobs.catalog.table_exists(TABLE):
            return [0] * PARTITIONS
        found = progress_of(self.jobs.table().metadata)
        positions = {} if found is None else {place.partition: offset for place, offset in found.positions.items()}
        return [positions.get(partition, 0) for partition in range(PARTITIONS)]

    def compact(self) -> None:
        """Writes all rows of the table into one new file, as a foreign compaction does; gives up if it comes second."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        if not self.jobs.catalog.table_exists(TABLE):
            return
        table = self.jobs.table()
        old = [one.file for one in table.scan().plan_files()]
        if len(old) < 2:
            return
        new = list(_dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io))
        try:
            commit_change(table, TableChange(added=new, removed=old, properties=carried(table.metadata)))
        except HeadMovedError:
            for one in new:
                table.io.delete(one.file_path)

    # ------------------------------------------------------------------ what must hold
    def places(self) -> tuple[pa.Array, pa.Array]:
        """Returns partitions and offsets of all rows and dead letters."""
        parts = []
        for name, prefix in ((TABLE, PREFIX), (DEAD, "")):
            if self.jobs.catalog.table_exists(name):
                names = (f"{prefix}partition", f"{prefix}offset")
                rows = self.jobs.table(name).scan(selected_fields=names).to_arrow().select(names)
                parts.append(rows.rename_columns(["partition", "offset"]).cast(_PLACES))
        rows = pa.concat_tables(parts) if parts else _PLACES.empty_table()
        return rows.column("partition"), rows.column("offset")

    def starts(self) -> dict[int, int]:
        """Returns the log start of each partition."""
        from lowtide.pipeline.cluster import EARLIEST_TIMESTAMP
        from lowtide.protocol.types import TopicPartition

        starts = self.jobs.cluster.list_offsets(
            {TopicPartition(TOPIC, one): EARLIEST_TIMESTAMP for one in range(PARTITIONS)}, read_committed=True
        )
        return {place.partition: one.offset for place, one in starts.items()}

    def check(self) -> None:
        """No offset is there twice, and each one below the log start is there."""
        starts = self.starts()
        partitions, offsets = self.places()
        for partition, start in starts.items():
            mine = offsets.filter(pc.equal(partitions, partition))
            below = pc.sum(pc.less(mine, start)).as_py() or 0
            assert pc.count_distinct(mine).as_py() == len(mine), f"partition {partition} has records twice"
            assert below == start, f"partition {partition} begins at {start}, but the table has {below} records below"

    def check_all(self) -> None:
        """Each record is there once, and the topic is empty."""
        self.check()
        partitions, offsets = self.places()
        assert len(offsets) == sum(self.written)
        for partition, count in enumerate(self.written):
            mine = offsets.filter(pc.equal(partitions, partition))
            assert pc.min_max(mine).as_py() == {"min": 0, "max": count - 1}
        assert self.progress() == self.written == [self.starts()[one] for one in range(PARTITIONS)]
        for name in (TABLE, DEAD):
            table = self.jobs.table(name)
            committed = {properties_of(each).get(ROUND) for each in table.metadata.snapshots}
            left = {round_of(each.path) for each in loose_files(table).data}
            assert left <= committed, "files of rounds that died are left behind"


_PLACES = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


def one_life(run: Run, number: int, moment: str, kind: str) -> None:
    run.write(RECORDS, number)
    dies = moment not in ("random", "broker", "twice")
    job = run.start(f"{moment}:{run.random.randrange(1, 4)}" if dies else "never:0", kind)
    second = run.start("never:0", "local") if moment == "twice" else None
    try:
        if number % 3 == 2:
            run.compact()
        if moment == "broker":
            await_progress(run, job)
            run.broker.kill()
            time.sleep(run.random.random())
            run.broker.start()
        elif moment == "random":
            await_progress(run, job)
            time.sleep(run.random.random() * 0.5)
        if dies or moment == "broker":
            deadline = time.monotonic() + LIMIT_S
            while job.poll() is None and not (kind == "local" and (run.folder / "died").exists()):
                assert time.monotonic() < deadline, run.words()
                time.sleep(0.02)
        if second is not None:
            assert second.wait(LIMIT_S) == 0, run.words()
    finally:
        for process in (job, second):
            if process is not None:
                kill(process)
    run.check()


def await_progress(run: Run, job: subprocess.Popen[bytes]) -> None:
    """Waits until the job has committed something, or has ended."""
    before, deadline = run.progress(), time.monotonic() + LIMIT_S
    while run.progress() == before and job.poll() is None:
        assert time.monotonic() < deadline, run.words()
        time.sleep(0.02)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the driver, its JVM and its Python workers."""
    for pid in session_of(process.pid):
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    process.wait(LIMIT_S)


@pytest.mark.slow
@pytest.mark.seeds
def test_killed_at_any_moment_each_record_is_in_the_table_once(tmp_path: Path):
    with BrokerProcess(tmp_path / "broker") as broker:
        make_topic(broker.address, TOPIC, PARTITIONS, **{"retention.ms": "-1"})
        run = Run(tmp_path, broker)
        try:
            moments = run.random.sample(MOMENTS, len(MOMENTS))
            for number in range(KILLS):
                moment = moments[number % len(MOMENTS)]
                kind = "spark" if number % SPARKS == SPARKS - 1 else "local"
                one_life(run, number, moment, kind)
                strike("killed life of a table job")
                print(f"kill {number + 1} of {KILLS}: {moment} ({kind}), table {run.progress()}", flush=True)
            run.write(RECORDS, KILLS)
            last = run.start("never:0", "local")
            assert last.wait(LIMIT_S) == 0, run.words()
            run.check_all()
        finally:
            run.jobs.close()
