"""A `lowtide serve` process on a free loopback port, with its log lines, ended only by its process id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from lowtide.simulation.client import WireClient
from tests import freezing
from tests.campaign.struck import strike
from tests.free_ports import HOST, free_ports

START_LIMIT_S = 120.0
STOP_LIMIT_S = 120.0
_LINE_LIMIT_BYTES = 1 << 20


def serve_command(
    directory: Path, *settings: str, metadata: str | None = None, python: str = sys.executable
) -> list[str]:
    """Returns the command line of a broker over `directory`, at a port that no other test's broker gets.

    A client that still looks for a killed broker is refused, instead of changing the broker of another test. Port 0 in
    `settings` is a free port, which the ready line has. `metadata` as of `--metadata`. `python` is the interpreter of
    an environment with Lowtide, which may be another version.

    Records may have any age: without a setting or a topic's configuration, none is deleted by time.
    """
    listener = f"listeners=PLAINTEXT://{HOST}:{free_ports(1)[0]}"
    given = [listener, f"log.dirs={directory}", "log.retention.ms=-1", *settings]
    options = [word for setting in given for word in ("--set", setting)] + (
        [] if metadata is None else ["--metadata", metadata]
    )
    return [python, "-m", "lowtide.cli.main", "serve", *options]


def run_to_end(command: list[str], *, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Runs a command that is expected to end by itself; otherwise it is killed and fails the test."""
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)


class ServeProcess:
    """One broker process. Used as `async with`: the process has ended at the end in any case."""

    def __init__(
        self,
        directory: Path,
        *settings: str,
        metadata: str | None = None,
        within: Sequence[str] = (),
        options: Sequence[str] = (),
        python: str = sys.executable,
    ) -> None:
        """`within` is a prefix that runs the command elsewhere; `options` are passed to `lowtide serve`."""
        self._command = [*within, *serve_command(directory, *settings, metadata=metadata, python=python), *options]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[int] | None = None
        self.lines: list[dict[str, Any]] = []
        self.noise: list[str] = []
        """Lines of standard error besides log lines: uncaught tracebacks."""
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.launch()
        try:
            await self.wait_ready()
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end(signal.SIGKILL)

    async def launch(self) -> None:
        """Starts the process without waiting for it."""
        self._ready = asyncio.get_running_loop().create_future()
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stderr=subprocess.PIPE, limit=_LINE_LIMIT_BYTES
        )
        self._reading = asyncio.get_running_loop().create_task(self._read_log())

    async def wait_ready(self) -> None:
        """Returns when clients are served. Errors: AssertionError if the process ends instead, TimeoutError."""
        assert self._ready is not None
        async with asyncio.timeout(START_LIMIT_S):
            self.port = await self._ready

    def kill_now(self) -> None:
        """SIGKILL, without waiting."""
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)

    async def kill(self) -> None:
        """SIGKILL, and wait for the end. May be called twice."""
        if self.is_running:
            strike("SIGKILL of a broker")
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        return await self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections, and is silent."""
        strike("SIGSTOP of a broker")
        freezing.freeze(self.pid)

    def thaw(self) -> None:
        """SIGCONT."""
        freezing.thaw(self.pid)

    @property
    def is_running(self) -> bool:
        """Whether the process exists, frozen or not."""
        return self._process is not None and self._process.returncode is None

    @property
    def is_ready(self) -> bool:
        """Whether it has become ready, even if it has failed since."""
        return self._ready is not None and self._ready.done()

    async def ended(self) -> int:
        """Waits until the process ends by itself; returns the exit code."""
        assert self._process is not None
        assert self._reading is not None
        code = await self._process.wait()
        await self._reading
        return code

    async def connect(self) -> WireClient:
        """Returns a client's connection. Errors: OSError."""
        return await WireClient.connect(HOST, self.port)

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None
        return self._process.pid

    @property
    def faults(self) -> list[str]:
        """The internal errors that a broker logged. A correct broker logs none, whatever its clients do."""
        lines = [line for line in self.lines if line["level"] in ("error", "critical")]
        return [
            f"{line['event']}: {line.get('request') or line.get('error')}\n{line.get('exception', '')}"
            for line in lines
        ] + self.noise

    def resident_bytes(self) -> int:
        """Resident memory now."""
        line = next(
            line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if line.startswith("VmRSS:")
        )
        return int(line.split()[1]) * 1024

    async def _end(self, number: int) -> int:
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.send_signal(number)
        async with asyncio.timeout(STOP_LIMIT_S):
            code = await process.wait()
            assert self._reading is not None
            await self._reading
        return code

    async def _read_log(self) -> None:
        process, ready = self._process, self._ready
        assert process is not None
        assert process.stderr is not None
        assert ready is not None
        async for line in process.stderr:
            self._take(line.decode().rstrip("\n"))
            if not ready.done() and self.lines and self.lines[-1]["event"] == "ready":
                ready.set_result(int(self.lines[-1]["address"].rpartition(":")[2]))
        if not ready.done():
            ready.set_exception(AssertionError(f"the broker ended before it was ready: {self.faults}"))
            ready.exception()  # a start without a waiting caller may fail

    def _take(self, line: str) -> None:
        try:
            self.lines.append(json.loads(line))
        except json.JSONDecodeError:
            self.noise.append(line)
