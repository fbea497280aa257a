"""One broker on virtual time: clients, faults, crashes, and checks after every event.

A seed determines the run, event by event. Clients produce, read and delete; the process is killed, the power fails,
writes and syncs fail, the disk is full or slow. After each pass of the loop the invariants of a replica are checked on
the logs; after each restart everything is read back and compared with what clients know.

Checked on logs: D5 a log start offset never falls, not even by a crash; D6 log start ≤ high watermark ≤ log end; P6
leader epochs rise and are within the log; S5 no segment above the durable log start offset is missing. At starts: S1 a
crash never prevents a start or loses a log. On histories: see `history`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import Counter
from contextlib import closing
from itertools import pairwise
from typing import Any

from lowtide.broker.config.broker_config import BrokerConfig, load_config
from lowtide.broker.lifecycle.broker import Broker, Ports
from lowtide.broker.lifecycle.logger import quiet_logger
from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.heavy_work import SimulatedHeavyWorker
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.runtime.simulated_node import SimulatedNode
from lowtide.runtime.simulated_ports import SimulatedClock, SimulatedCommitter
from lowtide.runtime.worker import SimulatedWorker
from lowtide.simulation.client import WireClient
from lowtide.simulation.history import HistoryError
from lowtide.simulation.load import PartitionLoad
from lowtide.simulation.memory_store import MemoryDisk, MemoryStore
from lowtide.storage.errors import StorageError
from lowtide.storage.log.log import Log

HOST, PORT, DIRECTORY, TOPIC = "broker-0", 9092, "/data", "sim"

FAULTS = (
    "kill",
    "power cut",
    "crash within an operation",
    "full disk",
    "slow disk",
    "failing sync",
    "failing write",
    "graceful stop",
    "truncation below the log start",
)

_QUIET_DISK_MS = (0.05, 2.0)
_SLOW_DISK_MS = (50.0, 900.0)
_LIFE_S = 0.8
_FOLD_S = 0.1
_START_LIMIT_S = 120.0
_SMALL_SEGMENT_BYTES = 2000


class LogWatch:
    """The observations of each log, over all lives."""

    def __init__(self) -> None:
        self.log_starts: dict[TopicPartition, int] = {}
        self._states: dict[TopicPartition, tuple[int, int, int]] = {}

    def check(self, log: Log, filesystem: MemoryFileSystem) -> None:
        """Checks the invariants of one replica, if anything changed. Errors: HistoryError."""
        key = log.topic_partition
        first = log.segments[0]
        has_file = filesystem.exists(first.path) or (first.create_file is not None and not first.size)
        if not (log.offline or has_file):
            self._fail(log, f"{log.segments[0].path} is gone though its records are not deleted")
        state = (log.log_start_offset, log.high_watermark, log.log_end_offset)
        if self._states.get(key) == state:
            return
        self._states[key] = state
        if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
            self._fail(log, "its offsets are out of order")
        if log.last_stable_offset < log.log_start_offset:
            self._fail(log, "its last stable offset is below its log start")
        if log.log_start_offset < self.log_starts.get(key, 0):
            self._fail(log, f"its log start fell from {self.log_starts[key]}")
        self.log_starts[key] = log.log_start_offset
        epochs = log.leader_epochs.entries()
        if any(a >= c or b >= d for (a, b), (c, d) in pairwise(epochs)):
            self._fail(log, f"its leader epochs don't rise: {epochs}")
        if epochs and epochs[-1][1] > log.log_end_offset:
            self._fail(log, f"its leader epochs go beyond its end: {epochs}")
        if log.segments[0].base_offset > log.log_start_offset:
            self._fail(log, f"its first segment begins at {log.segments[0].base_offset}")

    @staticmethod
    def _fail(log: Log, reason: str) -> None:
        raise HistoryError(f"{log!r}: {reason}")


class Simulation:
    """One run."""

    def __init__(self, loop: SimulatedLoop, seed: int, *, flush_each_append: bool, partitions: int = 2) -> None:
        """In half of the runs recovery points are written continuously, and the journal is folded now and then."""
        self.loop = loop
        self._has_upkeep = seed % 4 >= 2  # noqa: PLR2004
        self.random = Random(seed)
        self.clock = SimulatedClock(loop)
        self.filesystem = MemoryFileSystem(Random(seed + 1), self.clock.wall_ms)
        self.filesystem.block_bytes = 1  # The load is small, and is to make holes.
        self.disk = MemoryDisk()
        self.watch = LogWatch()
        self.faults: Counter[str] = Counter()
        self.lives = 0
        self.checks = 0
        self.flush_each_append = flush_each_append
        self.broker: Broker | None = None
        self.node: SimulatedNode | None = None
        self.committers: list[SimulatedCommitter] = []
        self.loads = [
            PartitionLoad(TOPIC, partition, self.connect, Random(seed + 10 + partition))
            for partition in range(partitions)
        ]
        self._violation: HistoryError | None = None

    # ------------------------------------------------------------------ the broker's lives
    async def connect(self) -> WireClient:
        self.raise_violation()
        return await WireClient.connect(HOST, PORT)

    def config(self) -> BrokerConfig:
        """Returns the broker's configuration: small segments, so that all roll and are deleted."""
        settings = {
            "log.dirs": DIRECTORY,
            "listeners": f"PLAINTEXT://{HOST}:{PORT}",
            "auto.create.topics.enable": "false",
        }
        if self._has_upkeep:
            settings["log.flush.offset.checkpoint.interval.ms"] = "100"
        return load_config(settings=settings)

    async def start(self) -> None:
        """Starts the broker, and waits until it serves."""
        self.lives += 1
        self._mend_disk()
        self.node = self.loop.start_node(HOST)
        started: asyncio.Future[None] = self.loop.create_future()
        self.node.spawn(self._serve(started), name=f"life {self.lives}")
        async with asyncio.timeout(_START_LIMIT_S):
            await started
        self.raise_violation()

    async def _start_again(self) -> None:
        """Starts the broker after a fault. Errors: HistoryError if the fault prevents it."""
        try:
            await self.start()
        except StorageError as error:
            raise HistoryError(f"S1: the broker can't start on what a crash left: {error}") from error

    async def _serve(self, started: asyncio.Future[None]) -> None:
        ports = Ports(
            loop=self.loop,
            clock=self.clock,
            filesystem=self.filesystem,
            random=Random(self.random.getrandbits(64)),
            worker=SimulatedWorker(self.loop, Random(self.random.getrandbits(64))),
            make_committer=self._make_committer,
            open_store=self._open_store,
            make_heavy_worker=self._make_heavy_worker,
        )
        self.broker = Broker(self.config(), ports, quiet_logger(logging.CRITICAL))
        try:
            await self.broker.start()
        except Exception as error:  # noqa: BLE001  the simulation decides what a failed start means
            if not started.done():
                started.set_exception(error)
            return
        if not started.done():
            started.set_result(None)

    def _make_heavy_worker(self, _processes: int) -> SimulatedHeavyWorker:
        worker = SimulatedHeavyWorker(self.filesystem, self.loop, Random(6))
        self.loop.kept.append(worker)
        return worker

    async def _open_store(self, _directory: str) -> MemoryStore:
        return MemoryStore(self.disk, clock=self.clock, random=Random(self.random.getrandbits(64)), loop=self.loop)

    def _make_committer(self, _directory: str) -> SimulatedCommitter:
        committer = SimulatedCommitter(self.filesystem, self.loop, Random(self.random.getrandbits(64)), _QUIET_DISK_MS)
        self.committers.append(committer)
        return committer

    def end_life(self, *, power: bool) -> None:
        """Kills the process; with `power`, cuts the machine's power."""
        assert self.node is not None
        self.node.kill()
        self.broker = None
        self.committers.clear()
        if power:
            self.filesystem.power_cut()
        else:
            self.filesystem.crash_process()

    # ------------------------------------------------------------------ invariants
    def check(self) -> None:
        """Checks what has changed. Called after every pass of the loop."""
        if self.broker is None or self.broker.replicas is None or self._violation is not None:
            return
        try:
            for log in self.broker.log_manager.logs.values():
                self.watch.check(log, self.filesystem)
                self.checks += 1
        except HistoryError as error:
            self._violation = error

    def raise_violation(self) -> None:
        """Raises the first violation that `check` found."""
        if self._violation is not None:
            raise self._violation

    async def check_all(self) -> None:
        self._check_all_are_here()
        for load in self.loads:
            client = await self.connect()
            await load.read_all(client)
            client.close()
        self.raise_violation()

    # ------------------------------------------------------------------ a run
    async def run(self, lives: int) -> None:
        """Runs a number of lives; each ends with a fault and reading everything back."""
        await self.start()
        client = await self.connect()
        configs = {
            "internal.segment.bytes": str(_SMALL_SEGMENT_BYTES),
            "index.interval.bytes": "500",
            "file.delete.delay.ms": "50",
        }
        if self.flush_each_append:
            configs["flush.messages"] = "1"
        await self.loads[0].create_topic(client, configs, partitions=len(self.loads))
        client.close()
        for _ in range(lives):
            await self._live(self.random.choice(FAULTS))
        await self.check_all()

    async def _live(self, fault: str) -> None:
        if fault == "truncation below the log start":
            await self._work_for_a_while()
            await self._truncate()
        stop = asyncio.Event()
        tasks = [
            self.loop.create_task(load.run(until=stop, pause_s=0.02), name=f"load {load.partition}")
            for load in self.loads
        ]
        await asyncio.sleep(self.random.random() * _LIFE_S)
        if self._has_upkeep:
            await self._fold()
        self.raise_violation()
        self.faults[fault] += 1
        power = await self._strike(fault)
        stop.set()
        await asyncio.gather(*tasks)
        self.raise_violation()
        await self._start_again()
        if power and not self.flush_each_append:
            self._allow_losses()
        await self.check_all()

    async def _fold(self) -> None:
        """Has the journal of log starts folded, followed by some deletes."""
        assert self.broker is not None
        for directory in self.broker.log_manager.directories._directories.values():  # noqa: SLF001 - no client asks for it
            if directory.is_online:
                directory.parts.journal.fold(lambda _error: None)
        await asyncio.sleep(self.random.random() * _FOLD_S)

    async def _strike(self, fault: str) -> bool:
        """Ends the life with a fault. Returns whether it was a power cut."""
        power = fault == "power cut" or (fault != "kill" and self.random.random() < 0.5)  # noqa: PLR2004
        if fault == "graceful stop":
            assert self.node is not None
            assert self.broker is not None
            await self.node.spawn(self.broker.stop(), name="stop")
        elif fault == "crash within an operation":
            await self._crash_within()
        elif fault not in ("kill", "power cut", "truncation below the log start"):
            self._break_disk(fault)
            await asyncio.sleep(self.random.random() * _LIFE_S)
        self.end_life(power=power)
        return power

    async def _work_for_a_while(self) -> None:
        stop = asyncio.Event()
        tasks = [
            self.loop.create_task(load.run(until=stop, pause_s=0.02), name=f"load {load.partition}")
            for load in self.loads
        ]
        await asyncio.sleep(self.random.random() * _LIFE_S)
        stop.set()
        await asyncio.gather(*tasks)

    async def _truncate(self) -> None:
        """Truncates a log below its log start offset, as a follower does whose leader lost data."""
        assert self.broker is not None
        for load in self.loads:
            log = next(
                log for log in self.broker.log_manager.logs.values() if log.topic_partition.partition == load.partition
            )
            if log.log_start_offset > 0:
                end = self.random.randrange(log.log_start_offset)
                await self._cut(self.broker, load, log, end)

    async def _cut(self, broker: Broker, load: PartitionLoad, log: Log, end: int) -> None:
        self.watch.log_starts[log.topic_partition] = end
        load.history.on_truncated(end)
        settled: asyncio.Future[None] = self.loop.create_future()
        broker.log_manager.truncate(log, end, lambda _error: settled.set_result(None))
        await settled

    async def _crash_within(self) -> None:
        died = asyncio.Event()

        def on_crash() -> None:
            assert self.node is not None
            self.node.kill()
            died.set()

        self.filesystem.on_crash = on_crash
        self.filesystem.crash_at = self.filesystem.operation_count + self.random.randint(1, 40)
        try:
            async with asyncio.timeout(_LIFE_S * 2):
                await died.wait()
        except TimeoutError:
            self.faults["crash that found no operation"] += 1

    def _break_disk(self, fault: str) -> None:
        if fault == "full disk":
            self.filesystem.capacity_bytes = 0
            self.loop.call_later(_LIFE_S / 2, self._mend_disk)
        elif fault == "slow disk":
            for committer in self.committers:
                committer.delay_range_ms = _SLOW_DISK_MS
        else:
            self.filesystem.fail_next("sync" if fault == "failing sync" else "write", errno.EIO)

    def _mend_disk(self) -> None:
        self.filesystem.capacity_bytes = None

    def _allow_losses(self) -> None:
        """Accepts losses by a power cut without flushing: the remaining log is the new truth."""
        logs = self._check_all_are_here()
        for load in self.loads:
            load.history.on_records_may_be_lost(logs[load.partition].log_end_offset)

    def _check_all_are_here(self) -> dict[int, Log]:
        """Returns the logs by partition after a start. Errors: HistoryError for a missing one."""
        assert self.broker is not None
        logs = {log.topic_partition.partition: log for log in self.broker.log_manager.logs.values()}
        missing = [load.partition for load in self.loads if load.partition not in logs]
        if missing:
            raise HistoryError(f"S1: the broker serves without the logs {missing}, on what a crash left")
        return logs


class CheckedLoop(SimulatedLoop):
    """A simulated loop that calls `after_pass` after every pass."""

    after_pass: Any = None

    def advance(self, timeout_s: float | None) -> None:
        if self.after_pass is not None:
            self.after_pass()
        super().advance(timeout_s)


def _raise_failures(loop: SimulatedLoop) -> None:
    failures = loop.failures()
    if failures:
        raise BaseExceptionGroup("unhandled failures", failures)


def simulate(seed: int, *, lives: int = 3) -> Simulation:
    """Runs one seed. Errors: HistoryError, or any exception, with the seed."""
    with closing(CheckedLoop(seed)) as loop:
        simulation = Simulation(loop, seed, flush_each_append=seed % 2 == 1)
        loop.after_pass = simulation.check
        try:
            loop.run_until_complete(simulation.run(lives))
            _raise_failures(loop)
        except BaseException as error:
            error.add_note(
                f"seed {seed}, at virtual time {loop.time():.6f} s, life {simulation.lives}, faults "
                f"{dict(simulation.faults)}"
            )
            raise
    return simulation
