"""Disk faults: slow, full and failing disks, and brokers that return with another disk.

Part of `faults`, which has their frequencies.
"""

from __future__ import annotations

import errno
from typing import Final

from lowtide.runtime.filesystem.nodes import Folder
from lowtide.runtime.filesystem.planned_faults import Operation
from lowtide.runtime.worker import SimulatedWorker
from lowtide.simulation.cluster_world import ClusterWorld
from lowtide.simulation.machines import DISK_MS, WORKER_MS, Machine, State
from lowtide.storage.log_start.journal_image import JOURNAL_NAME

SHORT_S: Final = (0.02, 0.6)
LONG_S: Final = (0.5, 4.0)
"""Some exceed a session."""

_DISK_OPERATIONS: Final[tuple[Operation, ...]] = ("write", "sync")


async def slow_disk(cluster: ClusterWorld) -> None:
    """Slows commits."""
    machine = cluster.random.choice(cluster.machines)
    cluster.excuses.begin(machine.broker_id)
    machine.slow_disk(cluster.random.choice(((5.0, 50.0), (50.0, 400.0))))
    cluster.note(f"the disk of {machine.host} is slow")
    await cluster.sleep(*LONG_S)
    cluster.effects["slow disk"] += bool(machine.committers)
    machine.slow_disk(DISK_MS)
    cluster.excuses.end(machine.broker_id, after_s=0.5)


async def cold_pages(cluster: ClusterWorld) -> None:
    """Makes reads miss the page cache, so that workers read later and out of order."""
    machine = cluster.random.choice(cluster.machines)
    cluster.excuses.begin(machine.broker_id)
    _cool(machine, cluster.random.choice((0.3, 1.0)), (0.02, cluster.random.choice((40.0, 700.0))))
    cluster.note(f"pages of {machine.host} are cold")
    await cluster.sleep(*LONG_S)
    cluster.effects["cold pages"] += machine.broker is not None
    _cool(machine)
    cluster.note(f"pages of {machine.host} are in memory")
    cluster.excuses.end(machine.broker_id, after_s=0.5)


def _cool(machine: Machine, share: float = 0.0, delay_range_ms: tuple[float, float] = WORKER_MS) -> None:
    """Sets the share of reads that miss the page cache, and the time of a worker's read."""
    machine.filesystem.cold_read_probability = share
    worker = None if machine.broker is None else machine.broker._ports.worker  # noqa: SLF001
    if isinstance(worker, SimulatedWorker):
        worker.delay_range_ms = delay_range_ms


async def full_disk(cluster: ClusterWorld) -> None:
    """Fills a disk. Its broker continues, and a new one can start."""
    machine = cluster.random.choice(cluster.machines)
    before = machine.filesystem.fault_counts["no_space"]
    machine.filesystem.capacity_bytes = 0
    cluster.note(f"the disk of {machine.host} is full")
    await cluster.sleep(*LONG_S)
    cluster.effects["full disk"] += machine.filesystem.fault_counts["no_space"] > before
    machine.filesystem.capacity_bytes = None
    cluster.note(f"the disk of {machine.host} has room")
    await cluster.revive(machine)


async def no_descriptors(cluster: ClusterWorld) -> None:
    """Prevents opening files and folders for a while, which must not count as a disk failure."""
    machine = cluster.pick(State.UP)
    if machine is None:
        return
    life, before, failed = machine.lives, machine.filesystem.fault_counts["no_descriptor"], _failed(machine)
    machine.disk_faults += 1
    cluster.excuses.begin(machine.broker_id)
    machine.filesystem.open_files_max = 0
    cluster.note(f"{machine.host} may open no file")
    await cluster.sleep(*(LONG_S if cluster.random.random() < 0.5 else SHORT_S))  # noqa: PLR2004
    cluster.effects["no descriptors"] += machine.filesystem.fault_counts["no_descriptor"] > before
    machine.filesystem.open_files_max = None
    machine.disk_faults -= 1
    cluster.note(f"{machine.host} may open files again")
    cluster.excuses.end(machine.broker_id, after_s=1.0)
    if (
        machine.lives == life
        and not machine.disk_faults
        and _failed(machine) == failed
        and machine.has_offline_directory
    ):
        cluster.chronicle.violate(f"E1: a lack of descriptors took a log directory of {machine.host} offline")
    await cluster.revive(machine)


def _failed(machine: Machine) -> int:
    """Returns the number of operations that a fault has failed."""
    return sum(machine.filesystem.fault_counts[operation] for operation in ("read", "write", "sync"))


async def no_room_at_times(cluster: ClusterWorld) -> None:
    """Fills a disk intermittently: for a file, a name, or the rest of a write."""
    machine = cluster.random.choice(cluster.machines)
    filesystem, random = machine.filesystem, cluster.random
    share = random.choice((0.02, 0.2, 0.6, 1.0))
    part = random.choice(("", "", "/", ".tmp", ".swap", ".log", "checkpoint", ".journal."))
    before = filesystem.fault_counts["no_space"]

    def lacks_room(operation: Operation, path: str) -> bool:
        if operation == "write" and path.endswith(JOURNAL_NAME):
            return False  # It has its size. Where writing over it takes room all the same, a start is refused.
        return part in path and random.random() < share

    filesystem.lacks_room = lacks_room
    cluster.note(f"the disk of {machine.host} has no room for {share:.0%} of what is called {part!r}")
    cluster.excuses.begin(machine.broker_id)
    await cluster.sleep(*(LONG_S if random.random() < 0.5 else SHORT_S))  # noqa: PLR2004
    cluster.effects["no room at times"] += filesystem.fault_counts["no_space"] > before
    if filesystem.lacks_room is lacks_room:
        filesystem.lacks_room = None
    cluster.note(f"the disk of {machine.host} has room for all")
    cluster.excuses.end(machine.broker_id, after_s=2.0)
    await cluster.revive(machine)


async def failing_disk(cluster: ClusterWorld) -> None:
    """Fails a write or a sync of one log directory."""
    machine = cluster.pick(State.UP)
    if machine is None:
        return
    operation: Operation = cluster.random.choice(_DISK_OPERATIONS)
    directory = cluster.random.choice(cluster.directories)
    before = machine.filesystem.fault_counts[operation]
    machine.disk_faults += 1
    machine.is_broken = True
    machine.filesystem.fail_next(operation, errno.EIO, path_contains=directory)
    cluster.note(f"the next {operation} in {directory} of {machine.host} fails")
    cluster.excuses.begin(machine.broker_id)
    await cluster.sleep(0.3, 3.0)
    cluster.effects[f"failing {operation}"] += machine.filesystem.fault_counts[operation] > before
    cluster.kill(machine, power=cluster.random.random() < 0.5)  # noqa: PLR2004
    machine.filesystem.clear_faults()
    machine.disk_faults -= 1
    cluster.excuses.end(machine.broker_id)
    await cluster.stay_down(machine)


async def empty_directory(cluster: ClusterWorld) -> None:
    """Restarts a broker with an empty disk."""
    await _other_disk(cluster, "empty")


async def old_directory(cluster: ClusterWorld) -> None:
    """Restarts a broker with an older copy of its disk."""
    await _other_disk(cluster, "old")


async def first_back_with_other_disk(cluster: ClusterWorld) -> None:
    """Kills all processes; the first to return, alone for longer than the sessions, has another disk."""
    machine = cluster.random.choice(cluster.machines)
    if machine.state is not State.UP or not cluster.may_lose_disk(machine) or len(cluster.machines) == 1:
        return
    for each in cluster.machines:
        cluster.kill(each)
    cluster.note(f"{machine.host} gets an empty disk, and is the first to be back")
    machine.replace_disk(Folder())
    cluster.invariants.on_disk_replaced(machine)
    cluster.effects["first back with another disk"] += 1
    cluster.start(machine)
    await cluster.sleep(0.5, 3.0)
    for other in cluster.shuffled():
        cluster.start(other)
        await cluster.sleep(0.0, 0.5)


async def foreign_directory(cluster: ClusterWorld) -> None:
    """Gives a broker another one's disk: it must refuse to start."""
    await _other_disk(cluster, "foreign")


async def _other_disk(cluster: ClusterWorld, kind: str) -> None:
    machine = cluster.pick(State.UP)
    if machine is None or not cluster.may_lose_disk(machine):
        return
    if kind == "old":
        cluster.kill(machine, power=True)
        copy = machine.filesystem.root.copy()
        await cluster.sleep(0.0, 1.0)
        cluster.start(machine)
        await cluster.sleep(1.5, 4.0)
        if machine.state is not State.UP or not cluster.may_lose_disk(machine):
            return
    cluster.kill(machine)
    await cluster.sleep(*(SHORT_S if cluster.random.random() < 0.6 else LONG_S))  # noqa: PLR2004
    if machine.state is not State.DOWN or not cluster.may_lose_disk(machine):
        return
    if kind == "foreign":
        await _refused_with_foreign_disk(cluster, machine)
        return
    cluster.note(f"{machine.host} gets an {kind} disk")
    machine.replace_disk(copy if kind == "old" else Folder())
    cluster.invariants.on_disk_replaced(machine)
    cluster.effects[f"{kind} directory"] += 1
    cluster.start(machine)


async def _refused_with_foreign_disk(cluster: ClusterWorld, machine: Machine) -> None:
    others = [
        other
        for other in cluster.machines
        if other is not machine
        and not other.disk_faults
        and all(other.filesystem.exists(f"{directory}/meta.properties") for directory in cluster.directories)
    ]
    if not others:
        return
    own = machine.filesystem.root.copy()
    foreign = cluster.random.choice(others)
    cluster.note(f"{machine.host} gets the disk of {foreign.host}")
    machine.filesystem.root = foreign.filesystem.root.copy()
    machine.disk_faults += 1
    cluster.start(machine)
    await cluster.sleep(0.5, 1.5)
    if machine.state is State.UP:
        cluster.chronicle.violate(f"rule DR8: {machine.host} serves with the disk of {foreign.host}")
    cluster.effects["foreign directory"] += machine.refused_start is not None
    cluster.kill(machine)
    machine.disk_faults -= 1
    machine.filesystem.root = own
    cluster.note(f"{machine.host} gets its own disk back")
    cluster.start(machine)
