"""Kafka Streams, exactly once, through a repartition topic that it purges: `python -m bench.streams --help`.

A round produces a record to each partition of the application's input, and ends when the committed copies behind the
repartition topic are read. Rounds begin at least 100 ms apart. So nothing queues up, however slow the application is:
it has two tasks for each partition, and each of its transactions writes to all partitions. The application commits
every 100 ms, and deletes what it has consumed of its repartition topic every 100 ms, or in the other phase only every
hour. The difference of the broker's CPU time a round is the cost of the purging. The latency is from producing a record
to its copy. The workload `purge` (`bench/purges.py`) sends the same deletes without Java.

The program is that of the tests (`tests/interop/java`), with Kafka's jars by Maven: it needs a JDK 17 and Maven.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from lowtide.protocol.key_hash import partition_of_key
from tests.interop.kafka import fetch_jars
from tests.interop.members import Member, until
from tests.interop.tools import JavaClient

from .arguments import parse_start
from .errors import BenchError
from .figures import percentile, show
from .measure import cost_of
from .purges import INTERVAL_S
from .report import table
from .targets import LOWTIDE, Target, TargetSpec
from .topics import create_topic

PURGES: Final = {"without purging": "3600000", "with purging": "100"}
"""`repartition.purge.interval.ms` of each phase."""

HEAD: Final = (
    *("broker", "phase", "CPU ms a round", "% of a core", "p50 ms", "p99 ms", "rounds/s"),
    "offsets left in a partition",
)

JVM_OPTIONS: Final = ("-Xmx1g", "-XX:+UseG1GC")
ROUND_LIMIT_S: Final = 240.0
"""Many tasks begin one after the other."""

SAMPLED: Final = 50
"""Partitions whose copies are read."""


class Rounds:
    """Produces records to a topic, and reads their copies from another."""

    def __init__(self, bootstrap: str, topic: str, out: str, partitions: int) -> None:
        settings = {"bootstrap.servers": bootstrap}
        self._producer = Producer(settings | {"linger.ms": 5})
        self.consumer = Consumer(settings | {"group.id": "none", "isolation.level": "read_committed"})
        self._topic, self._sampled = topic, min(partitions, SAMPLED)
        found = {partition_of_key(str(number).encode(), partitions): number for number in range(20 * partitions)}
        self._keys = [str(found[partition]) for partition in range(partitions)]
        """A key for each partition: the repartition topic has the record in the same one."""
        self.consumer.assign([TopicPartition(out, number, 0) for number in range(self._sampled)])

    def one(self) -> list[float]:
        """Returns the latencies of a round in ms. Errors: BenchError if copies are missing for too long."""
        until_s = time.perf_counter() + ROUND_LIMIT_S
        for partition, key in enumerate(self._keys):
            self._producer.produce(self._topic, str(time.time_ns()), key=key, partition=partition)
        self._producer.flush(ROUND_LIMIT_S)
        latencies_ms: list[float] = []
        while len(latencies_ms) < self._sampled:
            if time.perf_counter() > until_s:
                raise BenchError(f"{len(latencies_ms)} of {self._sampled} copies within {ROUND_LIMIT_S:.0f} s")
            copies = self.consumer.consume(self._sampled, 0.01)
            latencies_ms += [(time.time_ns() - int(each.value() or 0)) / 1e6 for each in copies]
        return latencies_ms

    def several(self, seconds: float) -> list[list[float]]:
        """Returns the latencies of the rounds that begin within so many seconds, at least one."""
        latencies_ms = []
        due_s = time.perf_counter()
        until_s = due_s + seconds
        while due_s < until_s:
            latencies_ms.append(self.one())
            due_s = max(due_s + INTERVAL_S, time.perf_counter())
            time.sleep(max(due_s - time.perf_counter(), 0))
        return latencies_ms


def measure(target: Target, java: JavaClient, name: str, partitions: int, seconds: float, folder: Path) -> list[str]:
    """Runs one phase; returns its row."""
    topic, out = f"{name.replace(' ', '-')}-in", f"{name.replace(' ', '-')}-out"
    for each in (topic, out):
        create_topic(target, each, partitions, {})
    given = {
        "topic": topic,
        "out": out,
        "purge": PURGES[name],
        "timeout": "60000",
        "directory": str(folder / target.name / topic),
    }
    with Member(java.command("pass", group=topic, protocol="classic", **given)) as member:
        until(lambda: bool(member.said("tasks") and member.said("tasks")[-1]["active"]), lambda: member.complaints)
        rounds = Rounds(target.bootstrap, topic, out, partitions)
        try:
            rounds.several(seconds / 2)  # The JVM compiles.
            with cost_of(target) as cost:
                latencies_ms = rounds.several(seconds)
            low, high = rounds.consumer.get_watermark_offsets(TopicPartition(f"{topic}-passed-repartition", 0))
        finally:
            rounds.consumer.close()
    every_ms = sorted(each for latencies in latencies_ms for each in latencies)
    figures = (
        cost.cpu_s / len(latencies_ms) * 1000,
        cost.cpu_s / cost.seconds * 100,
        percentile(every_ms, 0.5),
        percentile(every_ms, 0.99),
        len(latencies_ms) / cost.seconds,
        high - low,
    )
    return [target.name, name, *map(show, figures)]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=100, help="of the input and the repartition topic (100)")
    parser.add_argument("--seconds", type=float, default=20, help="measured in each phase (20)")
    parser.add_argument(
        "--start",
        type=parse_start,
        metavar="NAME=COMMAND",
        help="another broker, beside Lowtide, as in python -m bench",
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    specs = [TargetSpec(name="lowtide", command=LOWTIDE), *([arguments.start] if arguments.start else [])]
    with tempfile.TemporaryDirectory(prefix="bench-streams-") as folder:
        scratch = Path(folder)
        targets = [Target(spec, scratch) for spec in specs]
        try:
            rows = []
            classes = scratch / "classes"
            classes.mkdir()
            for name in PURGES:
                for target in targets:
                    target.ensure_up()
                    java = JavaClient(fetch_jars(), target.bootstrap, classes, JVM_OPTIONS)
                    rows.append(measure(target, java, name, arguments.partitions, arguments.seconds, scratch))
            print(f"load average now {os.getloadavg()[0]:.1f}:\n\n{table(HEAD, rows)}")
        finally:
            for target in targets:
                target.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
