"""`make demo-table`: a year of flights goes from a topic into an Iceberg table, and one aircraft is forgotten in both.

A broker process on this machine gets the flights of a year, with the aircraft as key. `lowtide table run` writes them
into a table and deletes from the topic what the table has. In the middle it is killed with SIGKILL and started again.
Then `lowtide records erase` forgets one aircraft, in the log and in the table. DuckDB reads the files of the table
before and after. At the end each remaining flight must be in the table once, the topic empty, and no file of the broker
or the table may have the aircraft. Any difference ends the run with a message and exit code 1.

Run: `python demo/flights_table.py` with `lowtide` beside that python; it needs a JVM and about 300 MB of temporary
space.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from flights import Broker
from flights_read import DemoError, Flight, read_flights, run_in_folder
from pyiceberg.catalog import load_catalog

TOPIC, TABLE, PARTITIONS = "flights", "air.flights", 3
AIRCRAFT = "N14228"
DEADLINE_S = 170.0
LOWTIDE = str(Path(sys.executable).with_name("lowtide"))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def aircraft_of(flight: Flight) -> str | None:
    name: str | None = json.loads(flight.line)["tailnum"]
    return name


class Lake:
    """The table, as its catalog and DuckDB see it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"sqlite:///{folder}/catalog.db"
        self.options = ("--catalog", self.address, "--table", TABLE)

    @property
    def table(self) -> Any:
        catalog = load_catalog("default", uri=self.address, warehouse=f"file://{self.folder}/warehouse")
        return catalog.load_table(TABLE)

    @property
    def rows(self) -> int:
        """The rows of the newest snapshot; 0 before the first."""
        with contextlib.suppress(Exception):
            snapshot = self.table.current_snapshot()
            return 0 if snapshot is None else int(snapshot.summary["total-records"])
        return 0

    def ask(self, question: str) -> list[Any]:
        """Asks DuckDB about the files of the newest snapshot."""
        files = [task.file.file_path.removeprefix("file://") for task in self.table.scan().plan_files()]
        return duckdb.sql(question.replace("TABLE", f"read_parquet({files!r}, union_by_name=true)")).fetchall()

    def files(self) -> list[Path]:
        return sorted(path for path in (self.folder / "warehouse").rglob("*") if path.is_file())


def load(bootstrap: str, flights: Sequence[Flight]) -> None:
    settings = {"linger.ms": 50, "compression.type": "zstd", "enable.idempotence": True, "log_level": 2}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number, flight in enumerate(flights):
        while True:
            try:
                producer.produce(TOPIC, flight.line, aircraft_of(flight), partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(DEADLINE_S):
        raise DemoError("The producer could not write all flights.")


class Job:
    """`lowtide table run`, with Spark, in a session of processes that are killed together."""

    def __init__(self, bootstrap: str, lake: Lake, log: Path, *more: str) -> None:
        command = [LOWTIDE, "table", "run", TOPIC, *lake.options, "--schema", "json", "--partition-by", "month"]
        options = ["--trim", "--trim-after", "0s", "--max-records-per-round", "100000", "--master", "local[2]"]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*command, *options, *more, "-b", bootstrap], stdout=output, stderr=output, start_new_session=True
            )
        self._log = log

    def wait(self) -> None:
        if self._process.wait(DEADLINE_S):
            raise DemoError(f"The job ended with code {self._process.returncode}: {self._log.read_text()[-2000:]}")

    def check(self) -> None:
        if self._process.poll() is not None:
            raise DemoError(f"The job ended early: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL to the job, its JVM and its Python workers, which Spark puts into process groups of their own."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(path.read_text().rpartition(")")[2].split()[3]) == self._process.pid:
                    os.kill(int(path.parent.name), signal.SIGKILL)
        self._process.wait(DEADLINE_S)


def files_with_aircraft(broker: Broker, lake: Lake) -> list[str]:
    """Returns the files that have the aircraft, in their bytes, or decompressed if they are Parquet."""
    name, found = AIRCRAFT.encode(), list[str]()
    for path in [*(each for each in broker.directory.rglob("*") if each.is_file()), *lake.files()]:
        with contextlib.suppress(FileNotFoundError):
            if path.suffix == ".parquet":
                keys = pq.read_table(path, columns=["kafka_key", "tailnum"])
                inside = name in keys["kafka_key"].to_pylist() or AIRCRAFT in keys["tailnum"].to_pylist()
            else:
                inside = False
            if inside or name in path.read_bytes():
                found.append(path.name)
    return found


def left_in_topic(bootstrap: str) -> int:
    """Returns the number of offsets between the log starts and the ends."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo", "log_level": 2})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    bounds = [consumer.get_watermark_offsets(TopicPartition(TOPIC, number), 30.0) for number in range(PARTITIONS)]
    consumer.close()
    return sum(high - low for low, high in bounds)


def wait_for_rows(lake: Lake, job: Job) -> int:
    give_up = time.monotonic() + DEADLINE_S
    while not (rows := lake.rows):
        job.check()
        if time.monotonic() > give_up:
            raise DemoError(f"The table had no rows within {DEADLINE_S:.0f} s.")
        time.sleep(0.2)
    return rows


def erase(bootstrap: str, lake: Lake) -> None:
    command = [LOWTIDE, "records", "erase", TOPIC, "--keys-from", "-", *lake.options, "--yes", "-b", bootstrap]
    ran = subprocess.run(command, input=AIRCRAFT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    say(f"{ran.stdout}{ran.stderr}".rstrip())
    if ran.returncode:
        raise DemoError(f"The erasure ended with code {ran.returncode}.")


def check_table(lake: Lake, expected: int, who: str) -> None:
    """Errors: `DemoError` unless each flight is in the table once."""
    ((rows, places),) = lake.ask("SELECT count(*), count(DISTINCT (kafka_partition, kafka_offset)) FROM TABLE")
    if (rows, places) != (expected, expected):
        raise DemoError(f"{who}: {rows:,} rows at {places:,} places; there must be {expected:,}.")
    carriers = lake.ask("SELECT carrier, count(*) FROM TABLE GROUP BY carrier ORDER BY 2 DESC LIMIT 3")
    say(f"{who}: {rows:,} rows, each flight once; most by {', '.join(f'{name} ({n:,})' for name, n in carriers)}.")


def run(directory: Path) -> None:
    """Errors: `DemoError`."""
    begin = time.monotonic()
    broker, lake, log = Broker(directory / "data"), Lake(directory / "lake"), directory / "job.log"
    lake.folder.mkdir()
    flights = read_flights()
    of_aircraft = sum(aircraft_of(each) == AIRCRAFT for each in flights)
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)
        half = len(flights) // 2
        load(broker.address, flights[:half])
        say(f"{half:,} flights are in the topic {TOPIC}.")
        say("$ lowtide table run flights --table air.flights --schema json --partition-by month --trim")
        job = Job(broker.address, lake, log, "--every", "1s")
        rows = wait_for_rows(lake, job)
        job.kill()
        say(f"Killed with SIGKILL when the table had {rows:,} rows. The other half arrives; the job starts again.")
        load(broker.address, flights[half:])
        Job(broker.address, lake, log, "--once").wait()
        check_table(lake, len(flights), "DuckDB")
        say(f"Left in the topic: {left_in_topic(broker.address)} records. The table has them.")
        say(f"{AIRCRAFT} is in {len(files_with_aircraft(broker, lake))} files. It is to be forgotten:")
        say("$ lowtide records erase flights --keys-from - --table air.flights --yes")
        erasing = time.monotonic()
        erase(broker.address, lake)
        say(f"Erased after {time.monotonic() - erasing:.1f} s.")
        check_table(lake, len(flights) - of_aircraft, "DuckDB")
        left = files_with_aircraft(broker, lake)
        if left:
            raise DemoError(f"The aircraft is still in {', '.join(left)}.")
        say(f"No byte of {AIRCRAFT} is in the {len(lake.files())} files of the table or those of the broker.")
        say(f"All in {time.monotonic() - begin:.0f} s.")
    finally:
        broker.stop()


if __name__ == "__main__":
    sys.exit(run_in_folder(run))
