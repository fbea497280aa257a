"""`format("lowtide")` beside Spark's own Kafka connector, on the same broker and the same records: `python -m
bench.spark --help`.

One Spark, which both share, reads a topic in one go, reads it as a stream with `availableNow`, and writes a topic.
Rounds are interleaved, every other one backwards; the first is separate, because a JVM compiles while it works. The
figure is the CPU time of the driver, its JVM and its Python workers together, for each row: it is more meaningful than
wall time on a busy machine.

The connector's jars come from `SPARK_KAFKA_JARS`, a list in the form of `spark.jars`. Without it only our format is
measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from .targets import LOWTIDE, Target, TargetSpec
from .usage import cpu_by_process

VALUE_BYTES: Final = 1024
PARTITIONS: Final = 2
BATCHES: Final = 4
"""Micro-batches of a stream."""

LOOK_S: Final = 0.2

CONNECTOR: Final = "kafka"
FORMATS: Final = ("lowtide", CONNECTOR)


class Cost(NamedTuple):
    """The cost of one job for each row."""

    cpu_us: float
    wall_us: float
    broker_us: float


class Ledger:
    """CPU time of this process and its descendants, sampled several times a second.

    Spark's daemon does not wait for the workers that it ends, so their CPU time is lost when they are gone.
    """

    def __init__(self, without: Target) -> None:
        self._without = without
        self._seen: dict[int, float] = {}
        self._looking_s = 0.0
        threading.Thread(target=self._look, daemon=True).start()

    def seconds(self) -> float:
        """Returns their CPU time so far.

        The broker, if it was started here, is a child of this process too, and is not counted.
        """
        self._add()
        return (
            sum(self._seen.copy().values())
            - self._looking_s
            - (self._without.cpu_s() if self._without.can_be_started else 0.0)
        )

    def _add(self) -> None:
        for process, seconds in cpu_by_process([os.getpid()]).items():
            # A process that ends during the sampling has no values any more.
            self._seen[process] = max(seconds, self._seen.get(process, 0.0))

    def _look(self) -> None:
        while True:
            self._add()
            self._looking_s = time.thread_time()
            time.sleep(LOOK_S)


class Bench:
    """One Spark and one broker."""

    def __init__(self, target: Target, rows: int, jars: str, scratch: Path, python: str = sys.executable) -> None:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 as below
        from pyspark.sql import SparkSession  # noqa: PLC0415 the other benches don't need PySpark

        os.environ["PYSPARK_PYTHON"] = python
        settings = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "2g",
            "spark.log.level": "ERROR",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        }
        builder = SparkSession.builder.master("local[2]")
        for key, value in (settings | ({"spark.jars": jars} if jars else {})).items():
            builder = builder.config(key, value)
        self._target, self._rows, self._scratch = target, rows, scratch
        self.spark = builder.getOrCreate()
        self._admin = AdminClient({"bootstrap.servers": target.bootstrap})
        self._names = 0
        self._ledger = Ledger(target)

    def topic(self) -> str:
        """Creates a topic."""
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415 as above

        name = f"spark-{os.getpid()}-{self._new()}"
        self._admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(60)
        return name

    def drop(self, topic: str) -> None:
        """Deletes it."""
        self._admin.delete_topics([topic])[topic].result(60)

    def _new(self) -> int:
        self._names += 1
        return self._names

    def measured(self, job: Callable[[], None]) -> Cost:
        """Runs it. The broker's own CPU time is separate; it is `nan` for a broker given only by its address."""
        ours, broker, began = self._ledger.seconds(), self._target.cpu_s(), time.perf_counter()
        job()
        wall, ours, broker = time.perf_counter() - began, self._ledger.seconds() - ours, self._target.cpu_s() - broker
        return Cost(*(seconds / self._rows * 1e6 for seconds in (ours, wall, broker)))

    # ------------------------------------------------------------------ jobs
    def write(self, kind: str, topic: str) -> None:
        """Writes generated rows with an idempotent producer and acks=all, the default of both formats."""
        rows = self.spark.range(self._rows).selectExpr(
            "cast(id as string) as key", f"cast(repeat(cast(id % 10 as string), {VALUE_BYTES}) as binary) as value"
        )
        writer = rows.write.format(kind).mode("append").option("kafka.bootstrap.servers", self._target.bootstrap)
        writer.option("kafka.acks", "all").option("topic", topic).save()

    def read(self, kind: str, topic: str) -> None:
        """Reads all columns of all rows."""
        reader = (
            self.spark.read.format(kind)
            .option("kafka.bootstrap.servers", self._target.bootstrap)
            .option("subscribe", topic)
        )
        reader.load().write.format("noop").mode("overwrite").save()

    def stream(self, kind: str, topic: str) -> None:
        """Reads the same in micro-batches, with a checkpoint."""
        reader = (
            self.spark.readStream.format(kind)
            .option("kafka.bootstrap.servers", self._target.bootstrap)
            .option("subscribe", topic)
        )
        rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", self._rows // BATCHES).load()
        checkpoint = str(self._scratch / f"checkpoint-{self._new()}")
        query = (
            rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        done = sum(progress["numInputRows"] for progress in query.recentProgress)
        assert done == self._rows, f"{kind} has read {done} rows of {self._rows}"


JOBS: Final[dict[str, Callable[[Bench, str, str], None]]] = {
    "stream, availableNow": Bench.stream,
    "batch read": Bench.read,
    "batch write": Bench.write,
}


def run(bench: Bench, formats: Sequence[str], rounds: int) -> dict[tuple[str, str], list[Cost]]:
    """Measures each job with each format, round by round."""
    filled = bench.topic()
    bench.write(formats[0], filled)
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(rounds):
        for name, job in JOBS.items():
            for kind in formats if number % 2 == 0 else formats[::-1]:
                topic = bench.topic() if job is Bench.write else filled
                cost = bench.measured(lambda job=job, kind=kind, topic=topic: job(bench, kind, topic))  # type: ignore[misc]
                costs.setdefault((name, kind), []).append(cost)
                print(
                    f"round {number}: {name}, {kind}: {cost.cpu_us:.1f} us of CPU a row, {1e6 / cost.wall_us:,.0f} "
                    "rows/s",
                    flush=True,
                )
                if topic != filled:
                    bench.drop(topic)
    return costs


def table(costs: dict[tuple[str, str], list[Cost]]) -> str:
    """Formats the first run, the second, and the median of the later ones."""
    lines = [
        "| work | by | first run | second | median of the others | rows/s | broker |",
        "|---|---|---|---|---|---|---|",
    ]
    for (name, kind), found in costs.items():
        later: list[Any] = found[2:] or found[1:] or found
        middle = [statistics.median(values) for values in zip(*later, strict=True)]
        second = f"{found[1].cpu_us:.1f}" if len(found) > 1 else "-"
        lines.append(
            f"| {name} | {kind} | {found[0].cpu_us:.1f} | {second} | {middle[0]:.1f} | {1e6 / middle[1]:,.0f} | "
            f"{middle[2]:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=500_000, help=f"of {VALUE_BYTES} bytes each (500000)")
    parser.add_argument("--rounds", type=int, default=5, help="over all jobs and both formats (5)")
    parser.add_argument("--only", choices=FORMATS, help="one format alone: its first runs are those of a new Spark")
    parser.add_argument(
        "--python", default=sys.executable, help="what Spark starts its Python processes as (the Python of this bench)"
    )
    parser.add_argument(
        "--target",
        metavar="HOST:PORT",
        help="a broker that runs; without it, a Lowtide of this working tree is started",
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    jars = os.environ.get("SPARK_KAFKA_JARS", "")
    if not jars:
        print("SPARK_KAFKA_JARS doesn't name the jars of Spark's Kafka connector: only Lowtide's format is measured")
    formats = [kind for kind in FORMATS if arguments.only in (None, kind) and (jars or kind != CONNECTOR)]
    if not formats:
        parser.error("there is nothing to measure")
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as name:
        host, _, port = (arguments.target or "").rpartition(":")
        spec = (
            TargetSpec(name="broker", address=(host, int(port)))
            if arguments.target
            else TargetSpec(name="broker", command=LOWTIDE)
        )
        target = Target(spec, Path(name))
        try:
            target.ensure_up()
            bench = Bench(target, arguments.rows, jars, Path(name), arguments.python)
            costs = run(bench, formats, arguments.rounds)
            print(f"\nCPU us a row, load average now {os.getloadavg()[0]:.1f}:\n\n{table(costs)}")
            bench.spark.stop()
        finally:
            target.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
