"""Exactly once into Parquet, with the topic emptied behind the job, with SIGKILL of driver and broker at random
moments.

After each kill of the driver the log's start is compared with the checkpoint: records for an uncommitted micro-batch
are there, and of committed micro-batches at most the last two. At the end every record is in the table once, and the
topic is empty.

`KILLS=n` is the number of driver kills for each kind of trim (the broker is killed once, in between), `SEED=n` repeats
the moments.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from .broker_process import BrokerProcess
from .conftest import make_topic, run_to_its_end
from .kill_job import writer_of
from .local_spark import python_environment

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("SEED", "7"))
LIMIT_S = 300.0
TOPIC = "numbers"
PARTITIONS = 2
ROWS_PER_BATCH = 200
VALUE_BYTES = 1000
SEGMENT_BYTES = 50_000


class Job:
    """One run of the driver: a session of processes, which are killed together."""

    def __init__(self, run: Run) -> None:
        command = [sys.executable, str(Path(__file__).with_name("kill_job.py")), *run.arguments]
        self._log = run.folder / "job.log"
        env = {**os.environ, **python_environment(run.folder)}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its Python workers, in any process group."""
        for pid in session_of(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(LIMIT_S)


def session_of(leader: int) -> list[int]:
    """Returns the processes of a session, the leader first."""
    found = [leader]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and path.parent.name != str(leader):
                found.append(int(path.parent.name))
    return found


class Run:
    """One topic, one table, one checkpoint over all runs of the driver."""

    def __init__(self, folder: Path, broker: BrokerProcess, trim: str) -> None:
        self.folder, self.broker, self.trim = folder, broker, trim
        self.random = random.Random(f"{SEED} {trim}")
        self.written = self.acknowledged = 0
        # A batch must fit into a segment.
        self._producer = Producer(
            {"bootstrap.servers": broker.address, "enable.idempotence": True, "batch.size": SEGMENT_BYTES // 4}
        )

    @property
    def arguments(self) -> tuple[str, str, str, str, str]:
        """The arguments of `kill_job.py`."""
        return self.broker.address, TOPIC, str(self.folder), self.trim, str(ROWS_PER_BATCH)

    def write(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            self._producer.produce(
                TOPIC, f"{number} ".ljust(VALUE_BYTES, "x"), partition=number % PARTITIONS, on_delivery=self._told
            )
        self.written += count
        assert self._producer.flush(LIMIT_S) == 0
        assert self.acknowledged == self.written

    def _told(self, error: object, _message: object) -> None:
        assert error is None, error
        self.acknowledged += 1

    def commits(self) -> list[int]:
        """Returns the completed micro-batches in the checkpoint."""
        folder = self.folder / "checkpoint" / "commits"
        return sorted(int(path.name) for path in folder.glob("[0-9]*")) if folder.exists() else []

    def end_of(self, batch: int) -> list[int]:
        """Returns the end offsets of a micro-batch, by partition."""
        lines = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        ends = json.loads(lines[2])[TOPIC]
        return [ends[str(partition)] for partition in range(PARTITIONS)]

    def bounds(self) -> list[tuple[int, int]]:
        """Returns the start and end of each partition, once the broker is back."""
        consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": "test"})
        deadline = time.monotonic() + LIMIT_S
        try:
            while True:
                try:
                    places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
                    return [consumer.get_watermark_offsets(place, timeout=10, cached=False) for place in places]
                except KafkaException:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
        finally:
            consumer.close()

    def await_commits(self, job: Job, count: int) -> None:
        """Waits until this many more micro-batches are done, or nothing is left to do."""
        before = len(self.commits())
        deadline = time.monotonic() + LIMIT_S
        while len(self.commits()) < before + count:
            if not job.is_running:
                pytest.fail(f"the job ended by itself: {job.words()}")
            assert time.monotonic() < deadline, job.words()
            commits = self.commits()
            if commits and sum(self.end_of(commits[-1])) == self.written:
                return
            time.sleep(0.01)

    def check_log_start(self, *, is_near: bool) -> None:
        """No uncommitted record is deleted; with `is_near` all but the last two micro-batches are deleted."""
        starts = [start for start, _ in self.bounds()]
        commits = self.commits()
        committed = self.end_of(commits[-1]) if commits else [0] * PARTITIONS
        assert all(start <= end for start, end in zip(starts, committed, strict=True)), (
            f"log starts {starts}, committed {committed}"
        )
        if is_near and len(commits) > 2:
            before = self.end_of(commits[-3])
            assert all(start >= end for start, end in zip(starts, before, strict=True)), (
                f"log starts {starts}, before {before}"
            )


def one_life(run: Run, *, kills_broker: bool) -> None:
    """Starts the driver, lets it run a few micro-batches or none, and kills it."""
    run.write(run.random.randrange(2, 7) * ROWS_PER_BATCH)
    done_before = len(run.commits())
    job = Job(run)
    try:
        run.await_commits(job, run.random.randrange(0, 5))
        time.sleep(run.random.random() * 0.5)
        if kills_broker:
            run.broker.kill()
            time.sleep(run.random.random())
            run.broker.start()
            run.await_commits(job, 1)
            time.sleep(run.random.random())
    finally:
        job.kill()
    # Trimming runs beside the query: a driver may be killed before it, but is at most two micro-batches behind.
    run.check_log_start(is_near=not kills_broker and len(run.commits()) >= done_before + 3)


@pytest.mark.slow
@pytest.mark.parametrize("trim", ["eager", "commit"] if KILLS > 1 else ["eager"])
def test_killed_at_any_moment_nothing_is_lost_duplicated_or_kept(spark: SimpleNamespace, tmp_path: Path, trim: str):
    with BrokerProcess(tmp_path / "broker", "log.segment.delete.delay.ms=100") as broker:
        make_topic(
            broker.address,
            TOPIC,
            PARTITIONS,
            **{"internal.segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "100"},
        )
        run = Run(tmp_path, broker, trim)
        for number in range(KILLS):
            one_life(run, kills_broker=number == KILLS // 2)
            print(
                f"{trim}: kill {number + 1} of {KILLS}, {run.written} written, batches {run.commits()[-1:]}, "
                f"{run.bounds()}",
                flush=True,
            )
        run.write(ROWS_PER_BATCH)
        run_to_its_end(writer_of(spark, *run.arguments).trigger(availableNow=True))
        run.check_log_start(is_near=True)

        rows = spark.read.parquet(str(tmp_path / "table")).selectExpr(
            "cast(split(value, ' ')[0] as int) as number", "partition", "offset"
        )
        found = rows.collect()
        assert sorted(row.number for row in found) == list(range(run.written))
        assert len({(row.partition, row.offset) for row in found}) == run.written
        retained = sum(end - start for start, end in run.bounds())
        assert retained <= (0 if trim == "eager" else 2 * ROWS_PER_BATCH)
        check_disk(broker, retained)


def check_disk(broker: BrokerProcess, retained: int) -> None:
    """The retained records and the active segment of each partition remain, once deleted files are removed."""
    most = retained * (VALUE_BYTES + 100) + PARTITIONS * 2 * SEGMENT_BYTES
    deadline = time.monotonic() + LIMIT_S
    while (size := sum(path.stat().st_size for path in broker.directory.glob(f"{TOPIC}-[0-9]*/*.log*"))) > most:
        assert time.monotonic() < deadline, f"{size} bytes are left, {most} may be"
        time.sleep(0.1)
