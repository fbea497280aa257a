"""`lowtide table run` beside Spark's Kafka source with Iceberg's writer, on the same broker and the same records:
`python -m bench.tables --help`.

Both write a whole topic into a new Iceberg table in a SQLite catalog, with the same columns, each with a Spark of its
own on two cores. Spark's is a stream with `availableNow`, or a batch, which knows no progress. Rounds are interleaved,
every other one backwards. Each is also run on a topic of a few records: what that costs is the start of its programs.

The figure is the CPU time of all processes of a program: it is more meaningful than wall time on a busy machine. After
each run DuckDB counts the rows of the table. Maven brings Spark's connector and Iceberg's runtime, pip the newest Spark
that this runtime supports.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.interop.table_readers import jars, jars_of_iceberg, older_spark

from .errors import BenchError
from .targets import LOWTIDE, Target, TargetSpec
from .usage import cpu_by_process

PARTITIONS: Final = 2
FEW: Final = 1_000
LOOK_S: Final = 0.05
LIMIT_S: Final = 1_800
SPARK_KAFKA: Final = "4.1.1"
CONNECTOR: Final = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_KAFKA}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK_KAFKA}",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)

PROGRAM: Final = """
import sys
from pyspark.sql import SparkSession

jars, folder, bootstrap, topic, schema, kind = sys.argv[1:]
settings = {
    "spark.jars": jars, "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR",
    "spark.driver.memory": "2g", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.lake.type": "jdbc",
    "spark.sql.catalog.lake.uri": f"jdbc:sqlite:{folder}/catalog.db", "spark.ui.showConsoleProgress": "false",
    "spark.sql.catalog.lake.warehouse": f"file://{folder}/warehouse",
    "spark.sql.catalog.lake.jdbc.schema-version": "V1",
}
builder = SparkSession.builder.master("local[2]")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
reader = spark.readStream if kind == "stream" else spark.read
options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest",
           "includeHeaders": "true"}
rows = reader.format("kafka").options(**options).load()
record = ["partition", "offset", "timestamp", "key", "headers"]
if schema == "raw":
    rows = rows.select(*record, "value")
else:
    shape = "number bigint, carrier string, origin string, delay double, tags array<string>"
    parsed = f"from_json(cast(value as string), '{shape}') as v"
    rows = rows.selectExpr(*(f"{name} as kafka_{name}" for name in record), parsed)
    rows = rows.select(*(f"kafka_{name}" for name in record), "v.*")
name = "lake.db.numbers"
if kind == "batch":
    rows.writeTo(name).using("iceberg").create()
else:
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema.fields)
    spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg")
    query = rows.writeStream.format("iceberg").outputMode("append").option("checkpointLocation", f"{folder}/checkpoint")
    query.trigger(availableNow=True).toTable(name).awaitTermination()
"""


class Cost(NamedTuple):
    """What a run has cost."""

    cpu_s: float
    wall_s: float
    file_bytes: int
    files: int


class TreeClock:
    """The CPU time of a process and its descendants, also of those that nobody waits for: sampled while it runs."""

    def __init__(self, process: int) -> None:
        self._process, self._seen = process, dict[int, float]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            for process, seconds in cpu_by_process([self._process]).items():
                self._seen[process] = max(seconds, self._seen.get(process, 0.0))

    def end(self) -> float:
        """Returns the sum."""
        self._ended.set()
        self._thread.join()
        return sum(self._seen.values())


def run(command: list[str], environment: dict[str, str], log: Path) -> tuple[float, float]:
    """Runs a program to its end. Returns its CPU and wall seconds. Errors: BenchError."""
    began = time.perf_counter()
    with log.open("ab") as words:
        process = subprocess.Popen(
            command, stdout=words, stderr=words, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )
    clock = TreeClock(process.pid)
    try:
        _, status, used = os.wait4(process.pid, 0)
    finally:
        sampled = clock.end()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchError(f"{command[:4]} ended with {process.returncode}: {log.read_text(errors='replace')[-1500:]}")
    return max(sampled, used.ru_utime + used.ru_stime), time.perf_counter() - began


def ours(bootstrap: str, topic: str, schema: str, folder: Path) -> tuple[float, float]:
    """Runs `lowtide table run`."""
    where = ["--catalog", f"sqlite:///{folder}/catalog.db", "--table", "db.numbers", "-b", bootstrap]
    words = ["table", "run", topic, *where, "--once", "--schema", schema, "--master", "local[2]"]
    return run([sys.executable, "-m", "lowtide.cli.main", *words], {}, folder / "log")


def theirs(kind: str) -> Callable[[str, str, str, Path], tuple[float, float]]:
    """Returns what runs Spark's Kafka source with Iceberg's writer."""

    def program(bootstrap: str, topic: str, schema: str, folder: Path) -> tuple[float, float]:
        found = ",".join(map(str, [*jars_of_iceberg(), *jars("spark-kafka", *CONNECTOR)]))
        environment = {"PYTHONPATH": str(older_spark()), "PYSPARK_PYTHON": sys.executable}
        command = [sys.executable, "-c", PROGRAM, found, str(folder), bootstrap, topic, schema, kind]
        return run(command, environment, folder / "log")

    return program


PROGRAMS: Final = {"lowtide": ours, "spark stream": theirs("stream"), "spark batch": theirs("batch")}


def written(folder: Path, rows: int, name: str) -> tuple[int, int]:
    """Returns bytes and number of the data files, after DuckDB has counted the rows. Errors: BenchError."""
    import duckdb  # noqa: PLC0415 - an extra

    files = [str(path) for path in folder.glob("warehouse/**/*.parquet")]
    found = duckdb.execute("SELECT count(*) FROM read_parquet($files)", {"files": files}).fetchall()
    if found != [(rows,)]:
        raise BenchError(f"{name} has written {found} rows of {rows}")
    return sum(Path(path).stat().st_size for path in files), len(files)


def fill(target: Target, topic: str, rows: int) -> None:
    """Writes records of about 200 bytes."""
    from confluent_kafka import Producer  # noqa: PLC0415 - of tests
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(60)
    settings = {"bootstrap.servers": target.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({**settings, "compression.type": "lz4"})
    for number in range(rows):
        value = {
            "number": number,
            "carrier": f"carrier-{number % 17}",
            "origin": f"airport-{number * 7919 % 1_000_003}",
            "delay": number % 1009 / 7,
            "tags": ["a-tag-of-some-length", "another", f"tag-{number % 101}"],
        }
        producer.produce(topic, json.dumps(value), key=f"key-{number % 50_000}", partition=number % PARTITIONS)
        if number % 10_000 == 0:
            producer.poll(0)
            while len(producer) > 500_000:
                producer.poll(0.1)
    if producer.flush(LIMIT_S):
        raise BenchError("not all records could be written")


def measured(target: Target, chosen: argparse.Namespace, scratch: Path) -> dict[tuple[str, int], list[Cost]]:
    """Measures each program with many and with few records, round by round."""
    topics = {chosen.rows: "many", FEW: "few"}
    for rows, topic in topics.items():
        fill(target, topic, rows)
    costs: dict[tuple[str, int], list[Cost]] = {}
    for number in range(chosen.rounds):
        for name in chosen.programs if number % 2 == 0 else chosen.programs[::-1]:
            for rows, topic in topics.items():
                with tempfile.TemporaryDirectory(dir=scratch) as folder:
                    cpu_s, wall_s = PROGRAMS[name](target.bootstrap, topic, chosen.schema, Path(folder))
                    cost = Cost(cpu_s, wall_s, *written(Path(folder), rows, name))
                costs.setdefault((name, rows), []).append(cost)
                print(f"round {number}: {name}, {rows} rows: {cpu_s:.1f} s of CPU, {wall_s:.1f} s", flush=True)
    return costs


def table(costs: dict[tuple[str, int], list[Cost]], names: list[str], rows: int) -> str:
    """Formats the least and the median of the rounds."""
    lines = [
        "| program | CPU s per million rows | without the start | rows/s | start: CPU s | files | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        many, few = costs[name, rows], costs[name, FEW]
        start_s = statistics.median(one.cpu_s for one in few)
        cpu_s = [one.cpu_s / rows * 1e6 for one in many]
        middle = statistics.median(cpu_s)
        without = middle - start_s / rows * 1e6
        rate = rows / statistics.median(one.wall_s for one in many)
        lines.append(
            f"| {name} | {min(cpu_s):.2f}, {middle:.2f} | {without:.2f} | {rate:,.0f} | {start_s:.1f} | "
            f"{many[0].files} | {many[0].file_bytes / 1e6:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tables", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000, help="of about 200 bytes each (3000000)")
    parser.add_argument("--rounds", type=int, default=3, help="over all programs (3)")
    parser.add_argument("--schema", choices=("raw", "json"), default="raw", help="columns of records, or of values too")
    parser.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME", help=", ".join(PROGRAMS)
    )
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="bench-tables-") as name:
        target = Target(TargetSpec(name="broker", command=LOWTIDE), Path(name))
        try:
            target.ensure_up()
            costs = measured(target, chosen, Path(name))
            print(f"\n{chosen.rows:,} rows, schema {chosen.schema}, load average now {os.getloadavg()[0]:.1f}:\n")
            print(table(costs, chosen.programs, chosen.rows))
        except BenchError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            target.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
