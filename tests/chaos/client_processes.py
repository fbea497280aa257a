"""Client programs in separate processes, so that a client can be killed like a broker: each reports its actions, one
JSON value a line.

A program is a module of the tests that is run by name; its arguments are one JSON value. Its reports before a kill
count, because a line is written at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.struck import strike

_ROOT = Path(__file__).resolve().parents[2]
END_LIMIT_S = 120.0
"""Longer than any program here takes for its last requests while a broker is down."""

LOOK_AGAIN_S = 0.05


def tell(value: Any) -> None:
    """Reports a value to the parent process. A kill in the middle leaves no report."""
    os.write(1, json.dumps(value).encode() + b"\n")


def asked_to_end() -> threading.Event:
    """Returns an event that SIGTERM sets. Call it before other threads start, which must not receive the signal.

    By a thread: a handler would run in the main thread, and wait for ever for the event's lock where that is just
    looking at the event.
    """
    asked = threading.Event()

    def wait() -> None:
        signal.sigwait({signal.SIGTERM})
        asked.set()

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()
    return asked


class ClientProcess:
    """One process of a client program. The code that starts it must end it."""

    def __init__(self, module: str, arguments: Any, on_told: Callable[[Any], None]) -> None:
        """`module` by its whole name; `on_told` is called with each value."""
        self._command = [sys.executable, "-m", module, json.dumps(arguments)]
        self._on_told = on_told
        self._process: asyncio.subprocess.Process | None = None
        self._reading: list[asyncio.Task[None]] = []
        self.noise: list[str] = []
        """The last lines of standard error."""

    async def start(self) -> None:
        """Starts it without waiting."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        self._reading = [asyncio.create_task(self._read_told()), asyncio.create_task(self._read_noise())]

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        """SIGKILL; returns when all its reports are read. May be called twice."""
        if self.is_running:
            strike("SIGKILL of a client")
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM, which ends a program; returns the exit code. A program whose library does not end is killed."""
        try:
            return await self._end(signal.SIGTERM)
        except TimeoutError:
            return await self._end(signal.SIGKILL)

    async def _end(self, number: int) -> int:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.send_signal(number)
        async with asyncio.timeout(END_LIMIT_S):
            code = await process.wait()
            await asyncio.wait(self._reading)
        for task in self._reading:
            task.result()
        return code

    async def _read_told(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):
                self._on_told(json.loads(line))

    async def _read_noise(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.noise = [*self.noise[-30:], line.decode(errors="replace").rstrip("\n")]


class Keeper:
    """Programs by name; one that ends is started again, until `rest`."""

    def __init__(self, make: Callable[[str], ClientProcess]) -> None:
        """`make` returns a program that is not started, for each start."""
        self.clients: dict[str, ClientProcess] = {}
        self.returns: Counter[str] = Counter()
        """How often each program was restarted."""
        self._make = make
        self._kept: tuple[str, ...] = ()
        self._keeping: asyncio.Task[None] | None = None

    def keep(self, *names: str) -> None:
        """Keeps these running from now on."""
        self._kept = names
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def rest(self) -> None:
        """Starts nothing more; running programs continue. Errors: those of failed restarts."""
        self._kept = ()
        task, self._keeping = self._keeping, None
        if task is not None:
            await task

    async def kill(self, name: str) -> None:
        """SIGKILL to one, if it runs."""
        if name in self.clients:
            await self.clients[name].kill()

    async def terminate(self, name: str) -> int | None:
        """SIGTERM to one, if it runs; returns the exit code."""
        return await self.clients[name].terminate() if name in self.clients else None

    async def close(self) -> None:
        """SIGKILL to all."""
        if self._keeping is not None:
            self._keeping.cancel()
        for client in self.clients.values():
            await client.kill()

    @property
    def noise(self) -> str:
        """The last lines of each, for a message."""
        return "\n".join(f"{name}: {line}" for name, client in self.clients.items() for line in client.noise)

    async def _keep(self) -> None:
        while self._kept:
            for name in self._kept:
                client = self.clients.get(name)
                if client is not None and client.is_running:
                    continue
                if client is not None:
                    await client.kill()
                    self.returns[name] += 1
                self.clients[name] = self._make(name)
                await self.clients[name].start()
            await asyncio.sleep(LOOK_AGAIN_S)
