"""Fixtures: each engine in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lowtide.runtime.simulated_loop import run_simulation
from tests.etcd import EtcdProcess, missing

from .machines import ClientMachine, EmbeddedMachine, EtcdMachine, Machine, MemoryMachine, Run, Scenario, ServedMachine


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd for all tests; without it they are skipped, but not in CI."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with EtcdProcess(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture(params=["memory", "client", "embedded", "served", "etcd"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Run a scenario on a machine with this engine."""
    makers: dict[str, Callable[[], Machine]] = {
        "memory": MemoryMachine,
        "client": ClientMachine,
        "embedded": lambda: EmbeddedMachine(tmp_path),
        "served": lambda: ServedMachine(tmp_path),
        "etcd": lambda: EtcdMachine(request.getfixturevalue("etcd")),
    }
    machine = makers[request.param]()

    async def play(scenario: Scenario) -> None:
        try:
            async with asyncio.timeout(120):  # A hung test, not a slow machine.
                await scenario(machine)
        finally:
            await machine.end()

    if request.param in {"embedded", "served", "etcd"}:
        return lambda scenario: asyncio.run(play(scenario))
    return lambda scenario: run_simulation(lambda _loop: play(scenario), seed=1)
