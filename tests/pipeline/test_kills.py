"""Exactly once into Parquet, with the topic emptied behind the job, though driver and broker are killed with SIGKILL at random moments.

After each kill of the driver the log's start is compared with the checkpoint: what an uncommitted micro-batch may need is there, and of
what is committed no more than the last two. In the end every record is in the table once, and the topic is empty.

`KILLS=n` kills the driver so often for each kind of trim (the broker once, in the midst), `SEED=n` repeats a choice of moments.
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
from .conftest import make_topic
from .local_spark import python_for_spark

KILLS = int(os.environ.get("KILLS", "1"))
SEED = int(os.environ.get("SEED", "7"))
LIMIT_S = 300.0
TOPIC = "numbers"
PARTITIONS = 2
ROWS_PER_BATCH = 200
VALUE_BYTES = 1000
SEGMENT_BYTES = 50_000


class Job:
    """One life of the driver: a session of processes, which die together."""

    def __init__(self, run: Run, *, once: bool = False) -> None:
        arguments = [run.broker.address, TOPIC, str(run.folder), run.trim, str(ROWS_PER_BATCH), *(["once"] if once else [])]
        command = [sys.executable, str(Path(__file__).with_name("kill_job.py")), *arguments]
        self._log = run.folder / "job.log"
        env = {**os.environ, "PYSPARK_PYTHON": python_for_spark(run.folder), "PYSPARK_DRIVER_PYTHON": sys.executable}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def words(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and its Python workers, wherever they have put themselves."""
        for pid in session_of(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(LIMIT_S)

    def wait(self) -> int:
        return self._process.wait(LIMIT_S)


def session_of(leader: int) -> list[int]:
    """The processes of a session, the leader first."""
    found = [leader]
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and path.parent.name != str(leader):
                found.append(int(path.parent.name))
    return found


class Run:
    """One topic, one table, one checkpoint over all lives."""

    def __init__(self, folder: Path, broker: BrokerProcess, trim: str) -> None:
        self.folder, self.broker, self.trim = folder, broker, trim
        self.random = random.Random(f"{SEED} {trim}")
        self.written = self.acknowledged = 0
        # A batch has to fit into a segment.
        self._producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, "batch.size": SEGMENT_BYTES // 4})

    def write(self, count: int) -> None:
        for number in range(self.written, self.written + count):
            self._producer.produce(TOPIC, f"{number} ".ljust(VALUE_BYTES, "x"), partition=number % PARTITIONS, on_delivery=self._told)
        self.written += count
        assert self._producer.flush(LIMIT_S) == 0
        assert self.acknowledged == self.written

    def _told(self, error: object, _message: object) -> None:
        assert error is None, error
        self.acknowledged += 1

    def commits(self) -> list[int]:
        """The micro-batches that the checkpoint says are done."""
        folder = self.folder / "checkpoint" / "commits"
        return sorted(int(path.name) for path in folder.glob("[0-9]*")) if folder.exists() else []

    def end_of(self, batch: int) -> list[int]:
        """Where a micro-batch ends, by partition."""
        lines = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        ends = json.loads(lines[2])[TOPIC]
        return [ends[str(partition)] for partition in range(PARTITIONS)]

    def bounds(self) -> list[tuple[int, int]]:
        """Where each partition begins and ends, once the broker is there again."""
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
        """Return when so many more micro-batches are done than now, or there is nothing left to do."""
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
        """Nothing is gone that isn't committed; `is_near`: and what was committed before the last two micro-batches is gone."""
        starts = [start for start, _ in self.bounds()]
        commits = self.commits()
        committed = self.end_of(commits[-1]) if commits else [0] * PARTITIONS
        assert all(start <= end for start, end in zip(starts, committed, strict=True)), f"log starts {starts}, committed {committed}"
        if is_near and len(commits) > 2:
            before = self.end_of(commits[-3])
            assert all(start >= end for start, end in zip(starts, before, strict=True)), f"log starts {starts}, before {before}"


def one_life(run: Run, *, kills_broker: bool) -> None:
    """Start the driver, let it do a few micro-batches or none, and kill it."""
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
    # What is trimmed is trimmed beside the query: a driver may be killed before it has, but isn't more than two micro-batches behind.
    run.check_log_start(is_near=not kills_broker and len(run.commits()) >= done_before + 3)


@pytest.mark.parametrize("trim", ["eager", "commit"] if KILLS > 1 else ["eager"])
def test_killed_at_any_moment_nothing_is_lost_doubled_or_kept(spark: SimpleNamespace, tmp_path: Path, trim: str):
    with BrokerProcess(tmp_path / "broker", "log.segment.delete.delay.ms=100") as broker:
        make_topic(broker.address, TOPIC, PARTITIONS, **{"internal.segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "100"})
        run = Run(tmp_path, broker, trim)
        for number in range(KILLS):
            one_life(run, kills_broker=number == KILLS // 2)
            print(f"{trim}: kill {number + 1} of {KILLS}, {run.written} written, batches {run.commits()[-1:]}, {run.bounds()}", flush=True)
        run.write(ROWS_PER_BATCH)
        last = Job(run, once=True)
        try:
            assert last.wait() == 0, last.words()
        finally:
            last.kill()
        run.check_log_start(is_near=True)

        rows = spark.read.parquet(str(tmp_path / "table")).selectExpr("cast(split(value, ' ')[0] as int) as number", "partition", "offset")
        found = rows.collect()
        assert sorted(row.number for row in found) == list(range(run.written))
        assert len({(row.partition, row.offset) for row in found}) == run.written
        retained = sum(end - start for start, end in run.bounds())
        assert retained <= (0 if trim == "eager" else 2 * ROWS_PER_BATCH)
        check_disk(broker, retained)


def check_disk(broker: BrokerProcess, retained: int) -> None:
    """What is left are the retained records and a segment of each partition that is still written to, once deleted files are gone."""
    most = retained * (VALUE_BYTES + 100) + PARTITIONS * 2 * SEGMENT_BYTES
    deadline = time.monotonic() + LIMIT_S
    while (size := sum(path.stat().st_size for path in broker.directory.glob(f"{TOPIC}-[0-9]*/*.log*"))) > most:
        assert time.monotonic() < deadline, f"{size} bytes are left, {most} may be"
        time.sleep(0.1)
