"""A broker as a service of systemd, which the test replaces: ready, alive, stopping."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from lowtide.runtime.service_manager import ServiceManager
from tests.chaos.serving import ServeProcess

UNIT = Path(__file__).resolve().parents[2] / "packaging/systemd/lowtide.service"
LIMIT_S = 60.0


class Manager:
    """A socket that receives datagrams."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.told: list[str] = []

    async def until(self, line: str, count: int = 1) -> None:
        async with asyncio.timeout(LIMIT_S):
            while Counter(self.told)[line] < count:
                self.told += (await asyncio.get_running_loop().sock_recv(self._socket, 4096)).decode().splitlines()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path):
    made = Manager(f"{tmp_path}/notify" if request.param == "file" else f"@lowtide-test-{tmp_path.name}-{id(request)}")
    yield made
    made.close()


async def test_a_broker_says_when_it_is_ready_that_it_lives_and_that_it_stops(tmp_path, manager):
    within = ("env", f"NOTIFY_SOCKET={manager.address}", "WATCHDOG_USEC=200000")
    broker = ServeProcess(tmp_path / "log", within=within)
    await broker.launch()
    try:
        await manager.until("READY=1")
        async with asyncio.timeout(LIMIT_S):
            await broker.wait_ready()
        assert f"STATUS=serving clients at 127.0.0.1:{broker.port}" in manager.told
        await manager.until("WATCHDOG=1", 5)
        assert "STOPPING=1" not in manager.told
        broker.freeze()
        manager.told.clear()
        with pytest.raises(TimeoutError):  # What is on its way arrives, and then no more.
            async with asyncio.timeout(1):
                await manager.until("WATCHDOG=1", 10)
        broker.thaw()
        await manager.until("WATCHDOG=1", 10)
        assert await broker.terminate() == 0
        await manager.until("STOPPING=1")
    finally:
        await broker.kill()


async def test_without_a_manager_nothing_is_said():
    manager = ServiceManager({})
    assert not manager.is_there
    manager.ready("")
    manager.stopping("")
    manager.close()


async def test_a_manager_that_is_gone_changes_nothing(tmp_path):
    manager = ServiceManager({"NOTIFY_SOCKET": f"{tmp_path}/gone", "WATCHDOG_USEC": "100000"})
    manager.ready("")
    manager.stopping("")
    manager.close()


@pytest.mark.parametrize("environment", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}])
async def test_a_watchdog_of_another_process_is_not_fed(tmp_path, environment):
    receiver = Manager(f"{tmp_path}/notify")
    manager = ServiceManager({"NOTIFY_SOCKET": receiver.address, "WATCHDOG_USEC": "100000"} | environment)
    manager.ready("")
    manager.stopping("")
    await receiver.until("STOPPING=1")
    assert "WATCHDOG=1" not in receiver.told
    manager.close()
    receiver.close()


def test_systemd_takes_the_unit(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    copy = tmp_path / "lowtide.service"
    copy.write_text(UNIT.read_text().replace("/opt/lowtide/bin/lowtide", "/bin/true"))
    found = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert [line for line in found.stderr.splitlines() if "lowtide.service" in line] == []
    assert found.returncode == 0
