"""Processes that are members of a group, of any client: their output, and their ends.

The programs are in `go/` and `java/`.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

QUICK = {
    "group_initial_rebalance_delay_ms": "0",
    "group_consumer_min_session_timeout_ms": "6000",
    "group_consumer_session_timeout_ms": "6000",
    "group_consumer_min_heartbeat_interval_ms": "300",
    "group_consumer_heartbeat_interval_ms": "300",
}
"""Settings of a broker that quickly detects joins and failures."""

DEADLINE_S = 60.0
"""Sessions end after 6 s, transactions too; the rest is for a busy machine."""


class Client(Protocol):
    """Starts a program of one client."""

    def __call__(self, name: str, **given: str) -> list[str]:
        """Returns the command line of the program `name`, such as `member`."""
        ...


def until(holds: Callable[..., bool], outputs: Callable[[], object]) -> None:
    """Waits until the condition holds. Errors: AssertionError with the members' output."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, outputs()
        time.sleep(0.02)


class Member:
    """One process. Used as `with`; it is killed at the end if it still runs."""

    def __init__(self, command: Sequence[str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self.complaints = ""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._readers = [
            threading.Thread(target=reader, daemon=True) for reader in (self._read_lines, self._read_complaints)
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id, for signals."""
        return self._process.pid

    @property
    def held(self) -> set[str]:
        """The partitions that it has, such as `topic-0`."""
        held: set[str] = set()
        for line in list(self.lines):
            if line["what"] == "assigned":
                held |= set(line["partitions"])
            elif line["what"] in {"revoked", "lost"}:
                held -= set(line["partitions"])
        return held

    @property
    def read(self) -> list[tuple[str, int]]:
        """The records that it has read and committed: partition and offset."""
        return [(line["at"], line["offset"]) for line in list(self.lines) if line["what"] == "read"]

    def said(self, what: str) -> list[dict[str, Any]]:
        """Returns the lines about something."""
        return [line for line in list(self.lines) if line["what"] == what]

    def leave(self) -> None:
        """Ends it cleanly. Errors: AssertionError if it fails."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(DEADLINE_S)
        self.kill()
        assert (code, self.said("failed")) == (0, []), self.complaints
        assert self.said("left"), self.complaints

    def kill(self) -> None:
        """SIGKILL. May be called again."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # The last line of a killed process may be truncated.
                self.lines.append(json.loads(line))

    def _read_complaints(self) -> None:
        assert self._process.stderr is not None
        self.complaints = self._process.stderr.read()


def outputs_of(*members: Member) -> list[object]:
    """Returns all output, for the analysis of a failed test."""
    return [(member.lines, member.complaints) for member in members]
