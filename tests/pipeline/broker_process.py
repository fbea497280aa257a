"""One broker as `lowtide serve` over all its restarts, on one port and one directory, for tests that block."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.free_ports import free_ports

LIMIT_S = 120.0
HOST = "127.0.0.1"


class BrokerProcess:
    """Used as `with`: the process has always ended at the end.

    `advertised_port`: the port that clients receive instead.
    """

    def __init__(self, directory: Path, *settings: str, advertised_port: int | None = None) -> None:
        (self.port,) = free_ports(1)
        self.directory = directory
        told = self.port if advertised_port is None else advertised_port
        given = [
            f"listeners=PLAINTEXT://{HOST}:{self.port}",
            f"advertised.listeners=PLAINTEXT://{HOST}:{told}",
            f"log.dirs={directory}",
        ]
        options = [word for setting in (*given, *settings) for word in ("--set", setting)]
        self._command = [sys.executable, "-m", "lowtide.cli.main", "serve", *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Starts it and returns when it accepts connections."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory.parent / f"{self.directory.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                socket.create_connection((HOST, self.port), timeout=LIMIT_S).close()
            except OSError:
                assert self._process.poll() is None, "the broker ended instead of starting"
                assert time.monotonic() < deadline, "the broker does not listen"
                time.sleep(0.02)
            else:
                return

    def terminate(self) -> None:
        """SIGTERM, and wait for the end: a clean stop."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(LIMIT_S)

    def kill(self) -> None:
        """SIGKILL, and wait for the end. May be called twice."""
        if self._process is not None:
            if self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(LIMIT_S)
