"""Kafka Streams, exactly once, through a repartition topic that it purges: `python -m bench.streams --help`.

Every 100 ms a record is produced to each partition of the application's input. The application commits every 100 ms,
and deletes what it has consumed of its repartition topic every 100 ms, or in the other phase only every hour. The
difference of the broker's CPU time is the cost of the purging; the latency is from producing a record to its committed
copy behind the repartition topic. The workload `purge` (`bench/purges.py`) sends the same deletes without Java.

The program is that of the tests (`tests/interop/java`), with Kafka's jars by Maven: it needs a JDK 17 and Maven.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.interop.kafka import fetch_jars
from tests.interop.members import Member, until
from tests.interop.tools import JavaClient

from .arguments import parse_start
from .figures import percentile, show
from .measure import cost_of
from .purges import INTERVAL_S
from .report import table
from .targets import LOWTIDE, Target, TargetSpec
from .topics import create_topic

PURGES: Final = {"without purging": "3600000", "with purging": "100"}
"""`repartition.purge.interval.ms` of each phase."""

JVM_OPTIONS: Final = ("-Xmx1g", "-XX:+UseG1GC")
START_LIMIT_S: Final = 240.0
"""Many tasks begin one after the other."""

SAMPLED: Final = 50
"""Partitions whose copies are read for the latency."""


def produce(producer: Producer, topic: str, partitions: int, ends: threading.Event) -> None:
    """Produces a record to each partition every 100 ms; its value is the time in ns."""
    due_s = time.perf_counter()
    while not ends.is_set():
        for partition in range(partitions):
            producer.produce(topic, str(time.time_ns()), key=str(partition), partition=partition)
        producer.poll(0)
        due_s = max(due_s + INTERVAL_S, time.perf_counter())
        time.sleep(max(due_s - time.perf_counter(), 0))
    producer.flush(60)


def measure(target: Target, java: JavaClient, name: str, partitions: int, seconds: float, folder: Path) -> list[str]:
    """Runs one phase; returns its row."""
    topic, out = f"{name.replace(' ', '-')}-in", f"{name.replace(' ', '-')}-out"
    for each in (topic, out):
        create_topic(target, each, partitions, {})
    bootstrap = {"bootstrap.servers": "{}:{}".format(*target.address)}
    ends = threading.Event()
    given = {"topic": topic, "out": out, "purge": PURGES[name], "timeout": "60000", "directory": str(folder / topic)}
    with Member(java.command("pass", group=topic, protocol="classic", **given)) as member:
        until(lambda: bool(member.said("tasks") and member.said("tasks")[-1]["active"]), lambda: member.complaints)
        producing = threading.Thread(
            target=produce, args=(Producer(bootstrap | {"linger.ms": 5}), topic, partitions, ends)
        )
        producing.start()
        consumer = Consumer(bootstrap | {"group.id": "none", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition(out, number, 0) for number in range(min(partitions, SAMPLED))])
        try:
            assert consumer.poll(START_LIMIT_S) is not None, member.complaints
            time.sleep(seconds / 2)  # The JVM compiles.
            while consumer.consume(10_000, 0.1):
                pass
            latencies_ms: list[float] = []
            with cost_of(target) as cost:
                until_s = time.perf_counter() + seconds
                while time.perf_counter() < until_s:
                    latencies_ms += [
                        (time.time_ns() - int(each.value() or 0)) / 1e6 for each in consumer.consume(1000, 0.05)
                    ]
        finally:
            ends.set()
            producing.join()
            consumer.close()
    latencies_ms.sort()
    figures = (cost.cpu_s / cost.seconds * 100, percentile(latencies_ms, 0.5), percentile(latencies_ms, 0.99))
    return [name, *map(show, figures), show(len(latencies_ms) / cost.seconds / min(partitions, SAMPLED))]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.streams", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=100, help="of the input and the repartition topic (100)")
    parser.add_argument("--seconds", type=float, default=20, help="measured in each phase (20)")
    parser.add_argument(
        "--start", type=parse_start, metavar="NAME=COMMAND", help="another broker, as in python -m bench"
    )
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="bench-streams-") as folder:
        target = Target(arguments.start or TargetSpec(name="lowtide", command=LOWTIDE), Path(folder))
        try:
            target.ensure_up()
            classes = Path(folder) / "classes"
            classes.mkdir()
            java = JavaClient(fetch_jars(), "{}:{}".format(*target.address), classes, JVM_OPTIONS)
            rows = [
                measure(target, java, name, arguments.partitions, arguments.seconds, Path(folder)) for name in PURGES
            ]
            head = [target.name, "broker, % of a core", "p50 ms", "p99 ms", "records/s a partition"]
            print(f"load average now {os.getloadavg()[0]:.1f}:\n\n{table(head, rows)}")
        finally:
            target.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
