"""A broker with a bad log directory names the file, keeps nothing locked, and starts once the file is repaired.

Whole brokers on the simulated loop and disk; the same with real processes is in tests/chaos.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.simulation.broker_simulation import DIRECTORY, Simulation
from lowtide.storage.errors import StorageError

JOURNAL = f"{DIRECTORY}/lowtide-log-start.journal"
META_PROPERTIES = f"{DIRECTORY}/meta.properties"
SEED = 5
RECORDS = 20


async def used(simulation: Simulation) -> None:
    """Run a broker, produce, delete, and stop cleanly."""
    await simulation.start()
    load = simulation.loads[0]
    client = await simulation.connect()
    await load.create_topic(client, {"internal.segment.bytes": "1000"}, partitions=len(simulation.loads))
    for _ in range(RECORDS):
        await load.produce(client, 1)
    while not load.history.acknowledged_delete:
        await load.delete(client)
    client.close()
    await stopped(simulation)


async def stopped(simulation: Simulation) -> None:
    assert simulation.broker is not None
    assert simulation.node is not None
    await simulation.node.spawn(simulation.broker.stop(), name="stop")
    simulation.node.kill()


async def refusal(simulation: Simulation) -> str:
    """The message of a refused start. The test cleans up nothing after it: what the start still holds stays held."""
    with pytest.raises(StorageError, match=DIRECTORY) as refused:
        await simulation.start()
    assert simulation.node is not None
    simulation.node.kill()
    return str(refused.value)


def simulated(main: Callable[[Simulation], Coroutine[Any, Any, None]]) -> None:
    async def run(loop: SimulatedLoop) -> None:
        simulation = Simulation(loop, SEED, flush_each_append=False)
        await used(simulation)
        await main(simulation)

    run_simulation(run, SEED)


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "journal": (JOURNAL, lambda content: content[:20] + b"\xff" + content[21:]),
    "journal cut": (JOURNAL, lambda content: content[:100]),
    "journal empty": (JOURNAL, lambda _: b""),
    "export of log starts": (f"{DIRECTORY}/log-begin-offset-checkpoint", lambda _: b"0\n1\n"),
    "Kafka's log starts": (f"{DIRECTORY}/log-start-offset-checkpoint", lambda _: b"x"),
    "owner": (META_PROPERTIES, lambda _: b"\xff"),
    "other node": (META_PROPERTIES, lambda content: content.replace(b"node.id=0", b"node.id=8")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_refused_start_keeps_nothing_and_can_be_repeated(damage: str) -> None:
    """Each refusal frees the lock, the port and the store: the third start, with the repaired file, serves all data."""
    path, change = DAMAGE[damage]

    async def main(simulation: Simulation) -> None:
        filesystem = simulation.filesystem
        content = filesystem.read_bytes(path)
        assert change(content) != content
        filesystem.write_bytes(path, change(content))
        for _ in range(2):
            assert path.rpartition("/")[2] in await refusal(simulation)
        assert filesystem.read_bytes(path) == change(content)
        filesystem.write_bytes(path, content)
        await simulation.start()
        await simulation.check_all()

    simulated(main)


def test_a_directory_in_use_is_refused_until_it_is_free() -> None:
    """Another process holds the lock: the start is refused, and leaves the lock to its holder."""

    async def main(simulation: Simulation) -> None:
        lock = simulation.filesystem.lock(f"{DIRECTORY}/.lock")
        for _ in range(2):
            assert "another broker" in await refusal(simulation)
        lock.release()
        await simulation.start()
        await simulation.check_all()

    simulated(main)


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
def test_a_disk_that_fails_while_starting_loses_nothing(operation: str) -> None:
    """A start with a failing file operation succeeds or ends with a message, and the next start finds all data."""

    async def main(simulation: Simulation) -> None:
        for _ in range(3):
            simulation.filesystem.fail_next(operation, 5, path_contains=DIRECTORY)
            try:
                async with asyncio.timeout(60):
                    await simulation.start()
            except (StorageError, OSError) as error:
                assert DIRECTORY in str(error)
                simulation.end_life(power=False)
            else:
                await simulation.check_all()
                await stopped(simulation)
        assert simulation.filesystem.fault_counts[operation] > 0
        await simulation.start()
        await simulation.check_all()

    simulated(main)
