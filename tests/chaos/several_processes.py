"""A `lowtide serve --processes` of real processes, with the lines of all in one log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.campaign.struck import strike

HOST = "127.0.0.1"
WAIT_LIMIT_S = 120.0


class SeveralProcesses:
    """A supervisor and its brokers over `directory`, on free ports.

    Used as `with`: at the end none of the processes runs.
    """

    def __init__(self, directory: Path, count: int | None, *settings: str, options: tuple[str, ...] = ()) -> None:
        given = ("node.id=1", f"listeners=PLAINTEXT://{HOST}:0", f"log.dirs={directory}", *settings)
        words = [word for setting in given for word in ("--set", setting)]
        processes = [] if count is None else ["--processes", str(count)]
        self.count = count or 1
        self._command = [sys.executable, "-m", "lowtide.cli.main", "serve", *words, *processes, *options]
        self._changed = threading.Condition()
        self.lines: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self.launch()

    def launch(self) -> None:
        """Starts it without waiting, and clears the collected log lines."""
        self.lines, self.noise = [], []
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for pid in self.pids.values():
            kill(pid)
        self._reading.join(WAIT_LIMIT_S)
        self.process.wait()

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers that were ready."""
        return ",".join({line["broker"]: line["address"] for line in self.found("broker ready")}.values())

    @property
    def pids(self) -> dict[int, int]:
        """The last process of each broker."""
        return {line["broker"]: line["pid"] for line in self.found("broker ready")}

    def found(self, event: str) -> list[dict[str, Any]]:
        """Returns the lines of an event."""
        return [line for line in list(self.lines) if line["event"] == event]

    def wait_for(self, condition: Callable[..., object]) -> None:
        """Waits until `condition()` holds; it is checked after each new line. Errors: AssertionError."""
        give_up = time.monotonic() + WAIT_LIMIT_S
        with self._changed:
            while not condition():
                assert time.monotonic() < give_up, (self.lines[-10:], self.noise)
                assert self._reading.is_alive(), (self.lines[-10:], self.noise)
                self._changed.wait(1.0)

    def wait_until_all_serve(self, times: int = 1) -> None:
        """Waits until all brokers have served together this many times since the start."""
        self.wait_for(lambda: len(self.found("all brokers ready")) >= times)

    def kill_broker(self, broker: int) -> None:
        """SIGKILL."""
        strike("SIGKILL of a broker")
        os.kill(self.pids[broker], signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """SIGKILL of the supervisor alone; its brokers end by themselves. Returns when it has ended."""
        strike("SIGKILL of a supervisor")
        self.process.kill()
        self.process.wait()

    def join(self) -> None:
        """Waits until none of the processes runs."""
        self._reading.join(WAIT_LIMIT_S)
        assert not self._reading.is_alive(), "a process outlives its supervisor"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Sends the signal to the supervisor. Returns the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Returns the exit code. All lines have arrived: no process has standard error open any more."""
        code = self.process.wait(WAIT_LIMIT_S)
        self.join()
        return code

    def _read(self) -> None:
        errors = self.process.stderr
        assert errors is not None
        with errors:
            for text in errors:
                with self._changed:
                    try:
                        self.lines.append(json.loads(text))
                    except json.JSONDecodeError:
                        self.noise.append(text)
                    self._changed.notify_all()


def kill(pid: int) -> None:
    """SIGKILL, if it is there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
