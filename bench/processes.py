"""One-record Produce to one broker process and to several of the same machine (`lowtide serve --processes`): `python -m
bench.processes`.

Each round starts each count of processes on an empty directory, interleaved, so that what else the machine does strikes
all of them alike. The load generator needs a core too: with two cores, two processes can't be twice as fast as one, and
the generator's share is printed. It is the one in C (`pump.c`), which leaves more of the cores to the brokers than the
one in Python.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.free_ports import free_ports

from .client import Address
from .compiled_pump import CompiledLane, CompiledPump
from .frames import batch, produce_error_position, produce_frame
from .loads import DEPTH, RECORD_BYTES, now_ms
from .targets import Target, TargetSpec
from .topics import check_ends, topic_on
from .usage import cpu_seconds

_LOOPBACK = "127.0.0.1"
_WARM_PART = 10
"""The first tenth of the requests isn't counted."""


def main() -> int:
    """Prints the rates of each count, and their ratios to the first one."""
    parser = argparse.ArgumentParser(prog="python -m bench.processes", description=__doc__)
    parser.add_argument("--counts", default="1,2", help="processes, separated by commas; default 1,2")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=4, help="each has a connection of its own; default 4")
    parser.add_argument(
        "--depth",
        type=int,
        default=DEPTH,
        help=f"requests in flight on each connection; default {DEPTH}, as of clients",
    )
    options = parser.parse_args()
    counts = [int(text) for text in options.counts.split(",")]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as folder:
        pump = CompiledPump(Path(folder))
        for number in range(options.rounds):
            for count in counts:
                rate, said = _measure(count, options, pump)
                rates[count].append(rate)
                print(
                    f"round {number + 1}, {count} process(es): {rate:,.0f} requests/s, {said}; load average "
                    f"{os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    medians = {count: statistics.median(found) for count, found in rates.items()}
    for count in counts[1:]:
        print(f"{count} processes: {medians[count] / medians[counts[0]]:.2f} times the rate of {counts[0]}, by medians")
    return 0


def _measure(count: int, options: argparse.Namespace, pump: CompiledPump) -> tuple[float, str]:
    records = batch(1, RECORD_BYTES, now_ms())
    with _running(count) as (address, process):
        target = Target(TargetSpec(name="lowtide", address=address, processes=(process,)), Path())
        with topic_on(target, options.partitions) as topic:
            frames = [produce_frame(topic.name, number, records) for number in range(options.partitions)]
            lanes = [CompiledLane(leader, frame) for leader, frame in zip(topic.leaders, frames, strict=True)]
            position = produce_error_position(topic.name)
            warm = max(options.requests // _WARM_PART, 1)
            pump(lanes, count=warm, depth=options.depth, error_position=position)
            before = cpu_seconds([process])
            load = pump(lanes, count=options.requests, depth=options.depth, error_position=position)
            cpu_us = (cpu_seconds([process]) - before) / options.requests * 1e6
            check_ends(topic, warm + options.requests)
            leaders = len(set(topic.leaders))
    generator = f"generator {load.generator_busy:.0f} % of a core"
    said = f"{leaders} leader(s), {cpu_us:.1f} us of CPU a request, {generator}, p99 {load.p99_us:,.0f} us"
    return load.count / load.seconds, said


@contextmanager
def _running(count: int) -> Iterator[tuple[Address, int]]:
    """Yields the first broker's address, and the started process. Errors: OSError."""
    with tempfile.TemporaryDirectory(prefix="lowtide-bench-") as directory:
        (port,) = free_ports(1)
        settings = [f"log.dirs={directory}", f"listeners=PLAINTEXT://{_LOOPBACK}:{port}", "http.listeners="]
        words = [word for setting in settings for word in ("--set", setting)]
        command = [sys.executable, "-m", "lowtide.cli.main", "serve", "--processes", str(count), *words]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                wanted = "ready" if count == 1 else "all brokers ready"
                while json.loads(process.stderr.readline() or "{}").get("event") != wanted:
                    assert process.poll() is None, "it has ended"
                yield (_LOOPBACK, port), process.pid
            finally:
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=60)


if __name__ == "__main__":
    sys.exit(main())
