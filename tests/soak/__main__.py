"""`python -m tests.soak --minutes 480`: three brokers under a mixed load for hours.

Do memory, files and etcd stay flat? The load: a partition that is produced to, read from every replica and deleted by
records, whose history is checked, and whose topic is deleted every few minutes; a topic that retention deletes, with a
group (KIP-848) whose members come and go; a compacted topic; transactions; one record at a time, whose times are kept.
Brokers 1 and 2 are stopped in order and started again, in turn; broker 3 lives through the run, so its memory and
descriptors show what a long life adds.

With `--earlier PYTHON`, the interpreter of an environment with another version of Lowtide, all begin as that version,
and each restart, of all three then, changes a broker to this tree's, and the next one back: an upgrade and the way
back, again and again.

Each sample is a line of `samples.jsonl` in the folder; the end prints the table of slopes. Returns 0 when no history is
broken, no broker reported a fault and nothing rises that must not (`report.py`), otherwise 1. Everything but the
samples is removed. Ctrl-C and SIGTERM end it early, with the table of what there is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest
from tests.chaos.asking import DELETE_TOPICS_VERSION
from tests.chaos.client_processes import ClientProcess, Keeper
from tests.chaos.cluster_load import PartitionWork
from tests.chaos.cluster_processes import LIMIT_S, ClusterProcesses

from . import programs, report
from .measured import measure

PROBE, PARTITIONS = "probe", 6
PROBE_EACH_S = 0.1
MEMBERS = ("read 1", "read 2", "read 3")
RESTARTED, LIVES = (1, 2), 3
SMALL = {"segment.bytes": str(1 << 20), "retention.ms": "120000", "segment.ms": "60000"}
SETTINGS = (
    "broker.session.timeout.ms=6000",
    "auto.leader.rebalance.enable=true",
    "leader.imbalance.check.interval.seconds=30",
    "log.retention.check.interval.ms=10000",
    "log.cleaner.backoff.ms=5000",
    "log.segment.delete.delay.ms=5000",
    "offsets.topic.num.partitions=3",
    "offsets.topic.segment.bytes=1048576",
    "transaction.state.log.num.partitions=3",
    "transaction.state.log.segment.bytes=1048576",
    "group.initial.rebalance.delay.ms=0",
)
"""Small segments and short times, so that what happens once a day elsewhere happens many times an hour here."""

ETCD = ("--auto-compaction-mode=revision", "--auto-compaction-retention=1000")
"""The settings of docs/etcd.md, but with a shorter history, for the same reason."""


class Soak:
    """One run."""

    def __init__(self, cluster: ClusterProcesses, folder: Path, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.samples: list[tuple[float, dict[str, float]]] = []
        self.reported: Counter[str] = Counter()
        self.restarts = self.checked = 0
        self._options = options
        self._begun_s = time.monotonic()
        self._until_s = self._begun_s + options.minutes * 60
        self._ended = asyncio.Event()
        self._samples_path = folder / "samples.jsonl"
        self._probed_ms: list[float] = []
        self._restarting = False
        self._keeper = Keeper(self._client)

    async def run(self) -> None:
        """Errors: HistoryError, AssertionError."""
        for topic, partitions, configs in (
            (programs.RETAINED, PARTITIONS, SMALL),
            (programs.COMPACTED, PARTITIONS, SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2"}),
            (programs.MOVED, PARTITIONS, SMALL),
            (PROBE, 1, SMALL),
        ):
            assignment = [[1 + (number + shift) % 3 for shift in range(3)] for number in range(partitions)]
            await self.cluster.create_topic(topic, assignment, configs=configs)
        self._keeper.keep("write retained", "write compacted", "move moved", *MEMBERS)
        jobs = [
            asyncio.create_task(job)
            for job in (self._check(), self._probe(), self._sample(), self._restart(), self._come_and_go())
        ]
        try:
            await asyncio.gather(*jobs)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
            await self._keeper.rest()
            for name in (*self._keeper.clients,):
                await self._keeper.terminate(name)
            await self._keeper.close()

    @property
    def minutes(self) -> float:
        """Since it began."""
        return (time.monotonic() - self._begun_s) / 60

    def end(self) -> None:
        """Ends it early, as if its time were over."""
        self._ended.set()

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until_s and not self._ended.is_set()

    async def pause(self, seconds: float) -> bool:
        """Waits so long, or until the end. Returns whether the run continues."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(min(seconds, self._until_s - time.monotonic()), 0.0))
        return self._goes_on

    def _client(self, name: str) -> ClientProcess:
        program, _, topic = name.partition(" ")
        given = {
            "bootstrap": self.cluster.bootstrap,
            "program": program,
            "topic": programs.RETAINED if program == "read" else topic,
        }
        return ClientProcess("tests.soak.programs", given, self._on_report)

    def _on_report(self, report_: dict[str, Any]) -> None:
        for what, value in report_.items():
            self.reported[f"{what}: {value}" if isinstance(value, str) else what] += 1

    # ------------------------------------------------------------------ jobs
    async def _check(self) -> None:
        """Partitions whose whole history is checked, one after the other."""
        while self._goes_on:
            topic = f"checked-{self.checked}"
            await self.cluster.create_topic(
                topic, [[2, 3, 1]], configs={"segment.bytes": str(1 << 20), "file.delete.delay.ms": "1000"}
            )
            work = PartitionWork(self.cluster, topic, seed=self.checked)
            work.start()
            await self.pause(self._options.checked_minutes * 60)
            await work.stop()
            await work.check()
            self.checked += 1
            request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=10_000)
            answer = await self.cluster.ask(LIVES, request, DELETE_TOPICS_VERSION, limit_s=LIMIT_S)
            assert answer.responses[0].error_code == ErrorCode.NONE, answer

    async def _probe(self) -> None:
        """One record at a time with acks=all; times count only while no broker restarts."""
        while await self.pause(PROBE_EACH_S):
            begun_s, calm = time.monotonic(), not self._restarting
            await self.cluster.append(PROBE, [b"x" * 100])
            if calm and not self._restarting:
                self._probed_ms.append((time.monotonic() - begun_s) * 1000)

    async def _sample(self) -> None:
        while await self.pause(self._options.sample_seconds):
            sample = measure(self.cluster)
            probed, self._probed_ms = self._probed_ms, []
            if len(probed) > 2:
                sample |= {
                    "produce p50 ms": statistics.median(probed),
                    "produce p99 ms": statistics.quantiles(probed, n=100)[98],
                }
            seconds = time.monotonic() - self._begun_s
            self.samples.append((seconds, sample))
            line = json.dumps({"seconds": round(seconds), **{name: round(value, 2) for name, value in sample.items()}})
            with self._samples_path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    async def _restart(self) -> None:
        """Restarts one broker after the other, as an operator does."""
        earlier, pythons = self._options.earlier, self.cluster.pythons
        while await self.pause(self._options.restart_minutes * 60):
            for broker_id in self.cluster.ids if earlier else RESTARTED:
                self._restarting = True
                await self.cluster.terminate(broker_id)
                if earlier:
                    pythons[broker_id] = sys.executable if pythons[broker_id] == earlier else earlier
                await self.cluster.start(broker_id)
                for topic in (programs.RETAINED, programs.COMPACTED, programs.MOVED):
                    for number in range(PARTITIONS):
                        await self.cluster.until_in_sync(topic, number)
                self._restarting = False
                self.restarts += 1
                if not await self.pause(self._options.restart_minutes * 30):
                    break

    async def _come_and_go(self) -> None:
        """A member of the group ends, and another one takes its place."""
        number = 0
        while await self.pause(self._options.member_minutes * 60):
            await self._keeper.terminate(MEMBERS[number % len(MEMBERS)])
            number += 1


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="three brokers under a mixed load, with rolling restarts"
    )
    parser.add_argument("--minutes", type=float, default=480.0, help="how long")
    parser.add_argument("--restart-minutes", type=float, default=10.0, help="between rolling restarts")
    parser.add_argument(
        "--checked-minutes", type=float, default=5.0, help="the life of a topic whose history is checked"
    )
    parser.add_argument("--member-minutes", type=float, default=3.0, help="between changes of the group's members")
    parser.add_argument("--sample-seconds", type=float, default=15.0, help="between samples")
    parser.add_argument(
        "--earlier", help="the interpreter of an environment with another version of Lowtide: upgrades, and ways back"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/soak"), help="for samples.jsonl")
    return parser.parse_args(arguments)


async def soak(options: argparse.Namespace, scratch: Path) -> tuple[Soak, list[str]]:
    """Runs it. Returns the run, and what failed."""
    cluster = ClusterProcesses(scratch, *SETTINGS, etcd_settings=ETCD)
    if options.earlier:
        cluster.pythons = dict.fromkeys(cluster.ids, options.earlier)
    async with cluster:
        run = Soak(cluster, options.folder, options)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, run.end)
        try:
            await run.run()
            cluster.check_no_faults()
        except (AssertionError, OSError) as error:
            return run, [f"{type(error).__name__}: {error}"]
    failed = [what for what in run.reported if what.startswith("failed: ")]
    if options.earlier:  # No broker lives long.
        return run, failed
    return run, failed + [f"{name} rises" for name in report.rising(report.trends(run.samples), [f"broker {LIVES} "])]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns its exit code."""
    options = options_of(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # Before it runs, they interrupt it.
        signal.signal(number, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="soak-", dir=options.folder) as scratch:
        run, failed = asyncio.run(soak(options, Path(scratch)))
    print(
        f"{run.minutes:.0f} minutes, {run.restarts} restarts, {run.checked} checked partitions; clients: "
        f"{dict(run.reported)}"
    )
    print("\n".join(report.table(report.trends(run.samples))))
    print("\n".join(f"FAILED {line}" for line in failed) or "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
