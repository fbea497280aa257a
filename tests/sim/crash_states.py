"""The states that a crash can leave on a broker's disk, moment by moment: on each a broker must start, and keep every
promise.

A run of one broker is recorded: before each operation that changes its disk, the disk with all that isn't durable yet,
and what clients had been answered by then. Of each moment some crash states are taken: the one that the death of the
process leaves, and several that a power cut may leave. A broker is started on each, everything is read back, and
compared with what clients knew at that moment.

Other than in `broker_simulation`, where chance chooses a moment or two of a run, no operation is left out. Recorded are
the creation of the logs, a life under load with deletes, and a restart after a power cut or a kill, so crashes during a
recovery are among the states.

Not recorded: a truncation below the log start (`broker_simulation` has it), and failing disks.
"""

from __future__ import annotations

import asyncio
import pickle
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import msgspec

from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.filesystem.nodes import Folder
from lowtide.runtime.random import Random
from lowtide.simulation.broker_simulation import CheckedLoop, Simulation, _raise_failures

POWER_CUTS: Final = 3
"""So many of the states that a power cut may leave are taken of each moment."""

_OPERATIONS_WITHOUT_EFFECT: Final = frozenset({"read", "open"})
_WORK_S: Final = 0.3


class RecordingDisk(MemoryFileSystem):
    """The simulated disk, which calls `on_operation` before each operation that may change it."""

    on_operation: Any = None

    def begin(self, operation: Any, path: str) -> None:
        """Records, then lets it happen."""
        if self.on_operation is not None and operation not in _OPERATIONS_WITHOUT_EFFECT:
            self.on_operation()
        super().begin(operation, path)

    def unsettled(self) -> Folder:
        """Everything, with what isn't durable yet."""
        return self.root


class Moment(msgspec.Struct, frozen=True):
    """The state before an operation: pickled, because most of it changes later, and compressed."""

    content: bytes
    may_have_lost: bool
    """Whether a power cut may lose acknowledged records, because the topic does not flush each append."""


class RecordedRun(Simulation):
    """The run of a seed. `moments` has each moment at which something had changed since the one before."""

    def __init__(self, loop: CheckedLoop, seed: int) -> None:
        """Whether each append is flushed; so in half of the runs."""
        super().__init__(loop, seed, flush_each_append=seed % 2 == 1)
        self.filesystem = self._recorded = RecordingDisk(Random(seed + 1), self.clock.wall_ms)
        self._recorded.on_operation = self._record
        self.moments: list[Moment] = []
        self._lost = False

    def _record(self) -> None:
        now = self._recorded.unsettled(), self.disk, self.watch, [load.history for load in self.loads]
        content = zlib.compress(pickle.dumps(now), 1)
        if not self.moments or self.moments[-1].content != content:
            self.moments.append(Moment(content, self._lost))

    async def record(self) -> None:
        """Two lives."""
        await self.start()
        client = await self.connect()
        configs = {"internal.segment.bytes": "2000", "index.interval.bytes": "500", "file.delete.delay.ms": "50"}
        if self.flush_each_append:
            configs["flush.messages"] = "1"
        await self.loads[0].create_topic(client, configs, partitions=len(self.loads))
        client.close()
        await self._work(folds=self._has_upkeep)
        power = self.random.random() < 0.5
        self.end_life(power=power)
        self._lost = power and not self.flush_each_append
        await self._start_again()
        if self._lost:
            self._allow_losses()
        await self.check_all()
        self._lost = False
        await self._work(folds=False)
        await self.check_all()

    async def _work(self, *, folds: bool) -> None:
        stop = asyncio.Event()
        tasks = [self.loop.create_task(load.run(until=stop, pause_s=0.02)) for load in self.loads]
        await asyncio.sleep(self.random.random() * _WORK_S)
        if folds:
            await self._fold()
        stop.set()
        await asyncio.gather(*tasks)
        self.raise_violation()


class RestartedRun(Simulation):
    """A broker that is started on one crash state."""

    def restore(self, moment: Moment, power_cut: Random | None) -> None:
        """Decides before its start whether `power_cut` applies or the process alone dies."""
        root, self.disk, self.watch, histories = pickle.loads(zlib.decompress(moment.content))
        for load, history in zip(self.loads, histories, strict=True):
            load.history = history
        self.filesystem.root = root
        if power_cut is not None:
            self.filesystem.power_cut(power_cut)

    async def run_on(self, *, may_have_lost: bool) -> None:
        """Starts, and reads everything back. Errors: HistoryError."""
        await self._start_again()
        assert self.broker is not None
        created = {log.topic_partition.partition for log in self.broker.log_manager.logs.values()}
        known = {load.partition for load in self.loads if load.history.attempted}
        if not created and not known:
            return  # It was before the topic was there.
        if may_have_lost:
            self._allow_losses()
        await self.check_all()


class Result(msgspec.Struct):
    """The number of checked states, and what the disk had done to them."""

    states: int = 0
    effects: Counter[str] = msgspec.field(default_factory=Counter)


def record(seed: int) -> list[Moment]:
    """Returns the moments of a run."""
    with closing(CheckedLoop(seed)) as loop:
        run = RecordedRun(loop, seed)
        loop.after_pass = run.check
        loop.run_until_complete(run.record())
        _raise_failures(loop)
        return run.moments


def states(moments: list[Moment], seed: int, each: int = 1) -> Iterator[tuple[str, Moment, Random | None]]:
    """All crash states that are looked at: a name, the moment, and what decides over a power cut."""
    for number, moment in list(enumerate(moments))[::each]:
        yield f"the process dies at moment {number}", moment, None
        for cut in range(POWER_CUTS):
            yield f"the power is cut at moment {number}, {cut}", moment, Random(f"{seed} {number} {cut}")


def start_on(seed: int, moment: Moment, power_cut: Random | None) -> Counter[str]:
    """Starts a broker on a crash state.

    Returns what became of unsynced changes. Errors: HistoryError if a promise is broken.
    """
    with closing(CheckedLoop(seed)) as loop:
        run = RestartedRun(loop, seed, flush_each_append=seed % 2 == 1)
        run.restore(moment, power_cut)
        loop.after_pass = run.check
        may_have_lost = moment.may_have_lost or (power_cut is not None and not run.flush_each_append)
        loop.run_until_complete(run.run_on(may_have_lost=may_have_lost))
        _raise_failures(loop)
        return run.filesystem.fault_counts


def search(seed: int, each: int = 1) -> Result:
    """Returns the states of every moment of one run, or of every so many.

    Errors: HistoryError, or whatever broke; a note names the seed and the state.
    """
    result = Result()
    for name, moment, power_cut in states(record(seed), seed, each):
        try:
            result.effects += start_on(seed, moment, power_cut)
        except Exception as error:
            error.add_note(f"seed {seed}: {name}")
            raise
        result.states += 1
    return result
