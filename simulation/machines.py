"""One machine of a simulated cluster: a disk, a clock, a link to the metadata store, and a broker's process.

The broker is the real one (`broker.lifecycle.broker.Broker`) over simulated ports. `faults` decides what happens to the
machine: its process is killed, suspended or stopped, its power fails, its disk fails or is replaced.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.broker import START_ERRORS, Broker, Ports
from lowtide.metadata.lease_keeper import KeeperTimes, LeaseKeeper, LeaseWatch
from lowtide.metadata.store import NO_LEASE, LeaseId, MetadataStoreError, OwnedStore
from lowtide.protocol.types import BrokerId
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.filesystem.nodes import Folder
from lowtide.runtime.heavy_work import SimulatedHeavyWorker
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop
from lowtide.runtime.simulated_node import SimulatedNode
from lowtide.runtime.simulated_ports import SimulatedClock, SimulatedCommitter
from lowtide.runtime.worker import SimulatedWorker
from lowtide.simulation.chronicle import BrokerLog, Chronicle
from lowtide.simulation.shared_store import SharedStore, StoreLink
from lowtide.storage.directory.log_manager import LogManager
from lowtide.storage.directory.sync_failure import SYNC_FAILED_MARK
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock

PORT: Final = 9092
DISK_MS: Final = (0.05, 2.0)
"""The time of a commit on a quiet disk."""
WORKER_MS: Final = (0.02, 2.0)
"""The time of a worker's task."""

Note = Callable[[str], None]


class SkewedClock(SimulatedClock):
    """A machine's clock, with its own rate and wall-clock offset."""

    __slots__ = ("_set_back", "rate")

    def __init__(self, loop: SimulatedLoop) -> None:
        """Creates a correct clock; a `rate` of 1.02 gains two per cent, and is set before any reading."""
        super().__init__(loop)
        self.rate = 1.0
        self._set_back: list[tuple[float, int]] = []

    def set_wall(self, offset_ms: int) -> None:
        """Sets the wall clock's offset."""
        self._set_back.append((self._loop.time(), self.wall_offset_ms))
        self.wall_offset_ms = offset_ms

    def latest_wall_ms(self, within_s: float) -> int:
        """Returns the latest wall-clock time within this span."""
        lately = [offset_ms for until_s, offset_ms in self._set_back if until_s >= self._loop.time() - within_s]
        return self.wall_ms() + max(0, max(lately, default=0) - self.wall_offset_ms)

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * self.rate * 1_000_000) // 1000


class State(Enum):
    """The state of a machine."""

    DOWN = "down"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"


class StartConditions(NamedTuple):
    """What the disk was like when the process last started.

    A new log directory on a full disk goes offline. It has no records to lose.
    """

    has_faults: bool = False
    was_used: bool = False
    is_full: bool = False


class Machine:
    """A machine, which faults kill, suspend, cut off or start."""

    def __init__(  # noqa: PLR0913  parts, each by its name
        self,
        *,
        loop: SimulatedLoop,
        shared: SharedStore,
        broker_id: BrokerId,
        random: Random,
        settings: Mapping[str, str],
        chronicle: Chronicle,
        effects: Counter[str],
    ) -> None:
        """Creates a machine that is down, with an empty disk. `settings` are its broker's, without id and address."""
        self.broker_id = broker_id
        self.host = f"broker-{broker_id}"
        self.settings = dict(settings)
        self.state = State.DOWN
        self.clock = SkewedClock(loop)
        self.filesystem = MemoryFileSystem(Random(random.getrandbits(64)), self.clock.wall_ms)
        self.filesystem.block_bytes = 1  # Loads are small, and are to make holes.
        self.link = StoreLink(shared, Random(random.getrandbits(64)), effects)
        self.committers: list[SimulatedCommitter] = []
        self.broker: Broker | None = None
        self.node: SimulatedNode | None = None
        self.keeper: SimulatedLeaseKeeper | None = None
        self.is_held = False
        """Whether its loop is blocked."""
        self.lives = 0
        self.started_s = -1.0
        """When it last began to serve."""
        self.directory_changes = 0
        """The number of disk replacements, each of which ends knowledge of its logs."""
        self.power_cuts = 0
        self.disk_faults = 0
        """The number of disk faults in progress."""
        self.is_broken = False
        """Whether a disk operation was to fail in this life: only then may a log directory go offline, not on a full
        disk."""
        self.refused_start: BaseException | None = None
        self.has_failed = False
        """Whether its broker ended by itself in this life."""
        self._start = StartConditions()
        self._loop = loop
        self._random = random
        self._chronicle = chronicle

    def __repr__(self) -> str:
        return f"Machine({self.host}, {self.state.value})"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, PORT

    @property
    def is_running(self) -> bool:
        """Whether there is a process that is not suspended."""
        return self.node is not None and self.node.is_alive and not self.node.is_paused

    @property
    def broker_epoch(self) -> int:
        """The broker epoch; 0 without a registration."""
        session = None if self.broker is None else self.broker._session  # noqa: SLF001
        return 0 if session is None else session.broker_epoch

    @property
    def has_offline_directory(self) -> bool:
        """Whether its broker serves with an offline log directory."""
        broker = self.broker
        return broker is not None and broker.replicas is not None and bool(broker.log_manager.directories.offline)

    # Lives

    def start(self) -> None:
        """Starts the process, which ends if the broker cannot start, or fails."""
        assert self.state is State.DOWN, self
        self.state = State.STARTING
        self.lives += 1
        directories = self.settings["log.dirs"].split(",")
        # A start rewrites what a failed sync left, which may not fit.
        self.is_broken = any(self.filesystem.exists(f"{path}/{SYNC_FAILED_MARK}") for path in directories)
        self.refused_start = None
        self.has_failed = False
        self._start = StartConditions(
            has_faults=self.disk_faults > 0,
            was_used=all(self.filesystem.exists(f"{path}/meta.properties") for path in directories),
            is_full=self.filesystem.lacks_room is not None,
        )
        self.committers.clear()
        self.link = self.link.renew()
        self._chronicle.note(self.host, f"starts, life {self.lives}")
        self.node = self._loop.start_node(self.host)
        self.node.spawn(self._live(self.lives), name=f"{self.host} life {self.lives}")

    def kill(self, *, power: bool = False) -> None:
        """Kills the process; with `power` cuts the power, and unsynced data may be lost."""
        if self.state is State.DOWN:
            if power:
                self._lose_power()
            return
        assert self.node is not None
        self._chronicle.note(self.host, "loses its power" if power else "is killed")
        self.node.kill(silently=power)
        self._end()
        if power:
            self._lose_power()
        else:
            self.filesystem.crash_process()

    def stop(self) -> None:
        """Shuts the broker down in a controlled way and ends the process (SIGTERM)."""
        if self.state is State.UP and self.node is not None and not self.node.is_paused:
            self.state = State.STOPPING
            self._chronicle.note(self.host, "is asked to stop")
            self.node.spawn(self._stop(self.lives), name=f"{self.host} stops")

    def pause(self) -> None:
        if self.node is not None and self.node.is_alive:
            self.is_held = False
            self._chronicle.note(self.host, "is stopped (SIGSTOP)")
            self.node.pause()

    def hold(self) -> None:
        """Blocks its loop until `resume`, but not its lease keeper."""
        if self.is_running and self.keeper is not None:
            assert self.node is not None
            self._chronicle.note(self.host, "has its loop held")
            self.is_held = True
            node, keeper = self.node, self.keeper
            node.pause()
            self.link.carry(lambda: keeper.stand_in(lambda: self.is_held and self.node is node and node.is_alive))

    def resume(self) -> int:
        """Continues the process (SIGCONT). Returns the number of callbacks that waited."""
        if self.node is None or self.node.parked is None:
            return 0
        self._chronicle.note(self.host, "continues" if self.is_held else "continues (SIGCONT)")
        self.is_held = False
        waited = len(self.node.parked)
        self.node.resume()
        return waited

    def replace_disk(self, root: Folder) -> None:
        """Replaces the disk while it is down: by another one, or an older copy."""
        assert self.state is State.DOWN, self
        self.filesystem.root = root
        self.directory_changes += 1

    def slow_disk(self, delay_range_ms: tuple[float, float] = DISK_MS) -> None:
        """Sets the time of commits."""
        for committer in self.committers:
            committer.delay_range_ms = delay_range_ms

    def heal(self) -> None:
        """Ends all faults of its disk and its link to the store."""
        self.filesystem.capacity_bytes = self.filesystem.open_files_max = None
        self.filesystem.clear_faults()
        self.slow_disk()
        self.filesystem.cold_read_probability = 0.0
        self.link.heal()

    async def _live(self, life: int) -> None:
        settings = {"node.id": str(self.broker_id), "listeners": f"PLAINTEXT://{self.host}:{PORT}", **self.settings}
        broker = Broker(
            load_config(settings=settings),
            self._ports(),
            BrokerLog(self._chronicle, self.host),
            on_failed=self._on_failed,
        )
        self.broker = broker
        try:
            await broker.start()
        except START_ERRORS as error:
            self._on_start_refused(error, life)
            return
        except Exception as error:
            self._chronicle.violate(f"{self.host} can't start: {error!r}")
            raise
        if self.lives == life:
            self.state, self.started_s = State.UP, self._loop.time()
            self._chronicle.note(self.host, "serves")

    async def _stop(self, life: int) -> None:
        assert self.broker is not None
        await self.broker.stop()
        if self.lives == life and self.state is State.STOPPING:
            self._chronicle.note(self.host, "has stopped")
            self._exit()

    def _on_start_refused(self, error: BaseException, life: int) -> None:
        if self.lives != life:
            return
        self._chronicle.note(self.host, f"can't start: {error}")
        self.refused_start = error
        # Nor is one that rewrites what a failed sync left, without enough space.
        is_excused = self._start.has_faults or self.disk_faults or self.is_broken
        if isinstance(error, StorageError) and not is_excused and self._start.was_used:
            self._chronicle.violate(f"S1: {self.host} can't start on what a crash left: {error}")
        self._exit()

    def _on_failed(self) -> None:
        """Stops the process because the broker cannot continue, as in `run_broker`."""
        self._chronicle.note(self.host, "has failed")
        self.has_failed = True
        self.check_directories()
        self._loop.call_soon(self.stop)

    def check_directories(self) -> None:
        """Checks that no log directory is offline, unless a disk operation failed, or it was new on a full disk."""
        is_new = self._start.is_full and not self._start.was_used
        if self.has_offline_directory and not (self.is_broken or is_new):
            assert self.broker is not None
            self._chronicle.violate(
                f"S2: {self.host} took a directory offline that works: {self.broker.log_manager.directories.offline}"
            )

    def _exit(self) -> None:
        assert self.node is not None
        self.node.kill()
        self._end()
        self.filesystem.crash_process()

    def _end(self) -> None:
        self.broker = self.keeper = None
        self.is_held = False
        self.committers.clear()
        self.state = State.DOWN

    def _lose_power(self) -> None:
        self.filesystem.power_cut()
        self.power_cuts += 1

    def _ports(self) -> Ports:
        return Ports(
            loop=self._loop,
            clock=self.clock,
            filesystem=self.filesystem,
            random=Random(self._random.getrandbits(64)),
            worker=SimulatedWorker(self._loop, Random(self._random.getrandbits(64)), WORKER_MS),
            make_committer=self._make_committer,
            open_store=self._open_store,
            make_heavy_worker=self._make_heavy_worker,
            make_lease_keeper=self._make_lease_keeper,
            shared_metadata="the simulated store",
        )

    def _make_heavy_worker(self, _processes: int) -> SimulatedHeavyWorker:
        worker = SimulatedHeavyWorker(self.filesystem, self._loop, Random(6))
        self._loop.kept.append(worker)
        return worker

    async def _open_store(self, _directory: str) -> OwnedStore:
        return self.link

    def _make_lease_keeper(self, times: KeeperTimes) -> LeaseKeeper:
        self.keeper = SimulatedLeaseKeeper(self.clock, self.link, times)
        return self.keeper

    def _make_committer(self, _directory: str) -> SimulatedCommitter:
        committer = SimulatedCommitter(self.filesystem, self._loop, Random(self._random.getrandbits(64)), DISK_MS)
        self.committers.append(committer)
        return committer


def log_manager_of(machine: Machine) -> LogManager | None:
    """Returns the logs of its broker, also while it starts; None before that."""
    return None if machine.broker is None else machine.broker._log_manager  # noqa: SLF001 - the checker sees everything


class SimulatedLeaseKeeper:
    """A keeper without a thread: while the loop is blocked, `stand_in` runs outside any process."""

    def __init__(self, clock: Clock, link: StoreLink, times: KeeperTimes) -> None:
        self._clock = clock
        self._link = link
        self._look_s = times.look_ms / 1000
        self._watch = LeaseWatch(times)
        self._closed = False

    def tick(self) -> None:
        self._watch.on_tick(self._clock.monotonic_ms())

    def on_renewed(self, lease: LeaseId) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_renewed(lease)

    def on_lost(self) -> None:
        """See `LeaseKeeper`."""
        self._watch.on_lost()

    def close(self) -> None:
        """See `LeaseKeeper`."""
        self._closed = True

    async def stand_in(self, is_held: Callable[[], bool]) -> None:
        """Renews while the loop is blocked."""
        while is_held() and not self._closed:
            lease = self._watch.due(self._clock.monotonic_ms())
            if lease != NO_LEASE:
                try:
                    await self._link.lease_keep_alive(lease)
                except MetadataStoreError:
                    self._watch.on_failed()
            await asyncio.sleep(self._look_s)
