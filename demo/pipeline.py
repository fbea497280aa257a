"""`make demo-pipeline`: a year of flights through a topic from which Spark deletes what it has consumed.

The 336,776 flights that left New York in 2013 are written to the topic `flights`, day by day, a week a second. A
separate Spark job, `delays_by_carrier.py`, which is all that a user would write, reads them as they arrive, computes
delays by carrier and hour into the topic `delays` and a Parquet table, and deletes from the broker what it has
committed. The same flights go to a second topic that no query trims, which shows how the disk would fill.

At the end the topic must be empty, the table must have its 60,142 rows, and each must equal the result of pandas on the
same file; any difference ends the run with a message and exit code 1. A picture shows the bytes on the disk and the low
watermark over time.

Run: `python demo/pipeline.py [picture.png]`, with Java 17 or newer, in an environment with `lowtide[pipeline]` and the
group `demo` of pyproject.toml. It takes a few minutes, most of it the year itself, and 300 MB of temporary space.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from flights_read import DemoError, Flight, read_flights
from pipeline_check import GROUPS, check_table
from pipeline_picture import Sample, draw, freed_after_s
from rich.console import Console

HOST = "127.0.0.1"
PARTITIONS = 3
TRIMMED, LEFT_ALONE, RESULT = "flights", "flights-left-alone", "delays"
SECONDS_FOR_A_YEAR = 52.0
DEADLINE_S = 180.0
SAMPLE_S = 0.25
LINE_S = 3.0
FREE_BYTES = 500_000
"""An empty topic takes some blocks in each of its files."""

END_OF_THE_YEAR = b'{"time_hour":"2014-01-03T00:00:00Z"}'
"""No flight, only a time: an hour is over when an event more than a day after it has arrived."""

FURTHEST_AHEAD = 40_000
"""The most flights that wait for Spark: on a busy machine the year takes longer."""


class Running:
    """A process that ends with the demo, and what it has written."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C ends the demo, and the demo ends its processes.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True
            )

    def check(self) -> None:
        """Errors: `DemoError` if it has ended."""
        if self._process.poll() is not None:
            words = self._log.read_text(errors="replace")[-3000:]
            raise DemoError(f"{self.name} ended with code {self._process.returncode}; it wrote:\n{words}")

    def stop(self) -> None:
        """SIGTERM to all of its processes, and SIGKILL to the rest."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                os.killpg(self._process.pid, number)
                try:
                    self._process.wait(20)
                except subprocess.TimeoutExpired:
                    continue


def start_broker(folder: Path) -> tuple[Running, str]:
    """Returns the process and its address, once it accepts connections."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        address = f"{HOST}:{probe.getsockname()[1]}"
    settings = {"listeners": f"PLAINTEXT://{address}", "log.dirs": str(folder / "data")}
    program = Path(sys.executable).with_name("lowtide")
    options = itertools.chain.from_iterable(("--set", f"{key}={value}") for key, value in settings.items())
    broker = Running("lowtide", [str(program), "serve", *options], folder)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        broker.check()
        try:
            socket.create_connection((HOST, int(address.rpartition(":")[2])), timeout=DEADLINE_S).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return broker, address
    raise DemoError(f"The broker did not listen on {address} within {DEADLINE_S:.0f} s.")


def start_job(folder: Path, address: str) -> Running:
    """Starts the job with the command of a user, except for the addresses."""
    submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent)) or shutil.which("spark-submit")
    if submit is None:
        raise DemoError("spark-submit is not installed; `make demo-pipeline` installs PySpark.")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise DemoError(
            "Spark needs Java 17 or newer; install it with the system's package manager (openjdk-17-jre-headless)."
        )
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": HOST,
        "spark.driver.host": HOST,
    }
    job = Path(__file__).with_name("delays_by_carrier.py")
    options = itertools.chain.from_iterable(("--conf", f"{key}={value}") for key, value in settings.items())
    arguments = [
        "--bootstrap-server",
        address,
        "--output",
        str(folder / "table"),
        "--checkpoint",
        str(folder / "checkpoint"),
    ]
    return Running("spark-submit", [submit, "--master", "local[2]", *options, str(job), *arguments], folder)


@dataclass
class Load:
    """Writes the flights of each day, then waits for the next: in its own thread."""

    address: str
    flights: list[Flight]
    written: int = 0
    consumed: int = 0
    """Written by the watcher of the topic."""

    failure: Exception | None = None
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        if self.failure is not None:
            raise DemoError(f"The flights could not be written: {self.failure}")
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 5})
            days = [list(day) for _, day in itertools.groupby(self.flights, key=lambda flight: flight.day)]
            moment = time.monotonic()
            for number, day in enumerate(days):
                for topic in (TRIMMED, LEFT_ALONE):
                    for flight in day:
                        producer.produce(topic, flight.line, flight.carrier)
                # A day is complete before the next one: partitions do not diverge by more than the job's watermark
                # allows.
                producer.flush()
                self.written += len(day)
                # The first day starts Spark's workers; the year begins when it is done.
                while self.written - self.consumed > (FURTHEST_AHEAD if number else 0):
                    time.sleep(0.05)
                moment = max(moment + SECONDS_FOR_A_YEAR / len(days), time.monotonic())
                time.sleep(max(0.0, moment - time.monotonic()))
            producer.produce(TRIMMED, END_OF_THE_YEAR)
            producer.flush()
        except (KafkaException, BufferError) as error:
            self.failure = error


class Watch:
    """The broker's offsets and disk usage over time."""

    def __init__(self, address: str, directory: Path) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "watch", "enable.auto.commit": False})
        self._directory = directory
        self._begin = time.monotonic()
        self.samples: list[Sample] = []

    def take(self) -> Sample:
        bounds = {topic: self._bounds(topic) for topic in (TRIMMED, LEFT_ALONE, RESULT)}
        sample = Sample(
            seconds=time.monotonic() - self._begin,
            trimmed_bytes=self._bytes(TRIMMED),
            left_alone_bytes=self._bytes(LEFT_ALONE),
            result_bytes=self._bytes(RESULT),
            written=bounds[TRIMMED][1],
            low_watermark=bounds[TRIMMED][0],
            results=bounds[RESULT][1],
        )
        self.samples.append(sample)
        return sample

    def restart(self) -> None:
        """Counts seconds from now on, and drops earlier samples."""
        self._begin = time.monotonic()
        self.samples.clear()

    def close(self) -> None:
        self._consumer.close()

    def _bounds(self, topic: str) -> tuple[int, int]:
        """Returns the sums of the log starts and of the ends of all partitions."""
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found = [self._consumer.get_watermark_offsets(place, timeout=DEADLINE_S, cached=False) for place in places]
        return sum(start for start, _ in found), sum(end for _, end in found)

    def _bytes(self, topic: str) -> int:
        """Returns the bytes of the logs on the disk, including deleted files that are not removed yet."""
        size = 0
        for path in self._directory.glob(f"{topic}-[0-9]*/*"):
            try:
                size += path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return size


class Demo:
    """The run, step by step."""

    def __init__(self, folder: Path, picture: Path, console: Console) -> None:
        self._folder = folder
        self._picture = picture
        self._console = console
        self._processes: list[Running] = []

    def run(self) -> None:
        begin = time.monotonic()
        flights = read_flights()
        broker, address = self._started(*start_broker(self._folder))
        self._console.print(f"Broker on {address}; {len(flights):,} flights to come, a week of 2013 each second")
        admin = AdminClient({"bootstrap.servers": address})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (TRIMMED, LEFT_ALONE, RESULT)]
        for made in admin.create_topics(topics).values():
            made.result(DEADLINE_S)
        job = start_job(self._folder, address)
        self._processes.append(job)
        self._await_job(job)
        watch = Watch(address, self._folder / "data")
        load = Load(address=address, flights=flights)
        load.start()
        try:
            self._warm_up(watch, load, [broker, job])
            self._watch(watch, load, [broker, job])
        finally:
            watch.close()
        job.stop()
        self._report(watch, begin)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()

    def _started(self, process: Running, address: str) -> tuple[Running, str]:
        self._processes.append(process)
        return process, address

    def _await_job(self, job: Running) -> None:
        """Waits until the query has written its id into the checkpoint."""
        begin = time.monotonic()
        while not (self._folder / "checkpoint" / "metadata").exists():
            job.check()
            if time.monotonic() > begin + DEADLINE_S:
                raise DemoError(f"Spark's query did not begin within {DEADLINE_S:.0f} s.")
            time.sleep(0.1)
        self._console.print(f"Spark's query has begun after {time.monotonic() - begin:.0f} s")

    def _warm_up(self, watch: Watch, load: Load, processes: list[Running]) -> None:
        """Sends the first day alone, so that Spark starts its workers."""
        begin = time.monotonic()
        while not load.consumed:
            for process in processes:
                process.check()
            if load.is_over or time.monotonic() > begin + DEADLINE_S:
                raise DemoError(f"The first day's flights were not consumed within {DEADLINE_S:.0f} s.")
            time.sleep(SAMPLE_S)
            load.consumed = watch.take().low_watermark
        self._console.print(f"The first day is through after {time.monotonic() - begin:.0f} s more; the year begins\n")
        watch.restart()

    def _watch(self, watch: Watch, load: Load, processes: list[Running]) -> None:
        """Waits until all flights are consumed, deleted and in the results."""
        self._console.print(
            "  seconds   flights in    deleted    rows out     MB: flights   not trimmed    delays", style="bold"
        )
        shown = -LINE_S
        deadline = None
        while True:
            for process in processes:
                process.check()
            sample = watch.take()
            load.consumed = sample.low_watermark
            if sample.seconds >= shown + LINE_S:
                shown = sample.seconds
                self._console.print(sample.line())
            if load.is_over:
                deadline = deadline or time.monotonic() + DEADLINE_S
                if (
                    sample.low_watermark == sample.written
                    and sample.results >= GROUPS
                    and sample.trimmed_bytes < FREE_BYTES
                ):
                    self._console.print(sample.line())
                    return
                if time.monotonic() > deadline:
                    raise DemoError(f"{DEADLINE_S:.0f} s after the last flight the job was not done: {sample}")
            time.sleep(SAMPLE_S)

    def _report(self, watch: Watch, begin: float) -> None:
        last = watch.samples[-1]
        most = max(sample.trimmed_bytes for sample in watch.samples)
        check_table(self._folder / "table", last.results)
        draw(watch.samples, self._picture)
        self._console.print(
            f"\nThe topic {TRIMMED} is empty: low watermark {last.low_watermark:,} of {last.written:,} (with the end "
            "of the year)."
            f"\nIt held {most / 1e6:.1f} MB at most, where {last.left_alone_bytes / 1e6:.1f} MB had been written."
            f"\nWhat was deleted had left the disk after {freed_after_s(watch.samples, FREE_BYTES):.2f} s at most."
            f"\n{GROUPS:,} rows by carrier and hour in {RESULT} and in Parquet, each as pandas has it."
            f"\nThe picture: {self._picture}"
            f"\n{time.monotonic() - begin:.0f} s in all."
        )


def main() -> int:
    """Runs the demo. Returns 0, or 1 after a message about the failure."""
    console = Console(highlight=False, soft_wrap=True)
    picture = Path(sys.argv[1] if len(sys.argv) > 1 else "build/pipeline.png").resolve()
    picture.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lowtide-pipeline-") as folder:
        demo = Demo(Path(folder), picture, console)
        try:
            demo.run()
        except (DemoError, KafkaException) as error:
            console.print(f"[bold red]Failed:[/] {error}", markup=True)
            return 1
        finally:
            demo.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
