"""A `lowtide serve` process on a free loopback port, for tests that are not asynchronous themselves."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

START_LIMIT_S = 120.0
STOP_LIMIT_S = 120.0


class LowtideProcess:
    """One broker process on `directory`. Used as `with`: at the end it is stopped, and must have reported no fault."""

    def __init__(
        self,
        directory: Path,
        *,
        after_kill: bool = False,
        program: Sequence[str] = ("-m", "lowtide.cli.main"),
        **settings: str,
    ) -> None:
        """With `after_kill` it may report a batch that was cut off because it was not written whole.

        `program` is what Python runs.
        """
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)} | {
            key.replace("_", "."): settings[key] for key in settings
        }
        words = (word for key, value in given.items() for word in ("--set", f"{key}={value}"))
        self._command = [sys.executable, *program, "serve", *words]
        self._ready: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._complaints: list[str] = []
        self._killed = False
        self._expected = {"log was repaired"} if after_kill else set()
        self.directory = directory
        self.bootstrap = ""

    def __enter__(self) -> Self:
        """Starts, and waits until clients are served.

        Errors: AssertionError if the process ends instead, queue.Empty if it hangs.
        """
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            address = self._ready.get(timeout=START_LIMIT_S)
            assert address is not None, "".join(self._complaints)
        except BaseException:
            self._kill()
            raise
        self.bootstrap = address
        return self

    def __exit__(self, *_: object) -> None:
        """Stops by SIGTERM, unless it was killed."""
        self._process.terminate()
        try:
            assert self._killed or self._process.wait(STOP_LIMIT_S) == 0
        finally:
            self._kill()
        assert not self._complaints, "".join(self._complaints)

    def kill(self) -> None:
        """SIGKILL. A new process on the same directory, with the same `listeners`, continues."""
        self._killed = True
        self._kill()

    def _kill(self) -> None:
        """Ends the process if it still runs, and reads its last output."""
        self._process.kill()
        self._process.wait(STOP_LIMIT_S)
        self._reader.join(STOP_LIMIT_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            entry = log_entry(line)
            if entry.get("event") == "ready":
                self._ready.put(entry["address"])
            elif entry.get("level") not in {"info", "debug"} and entry.get("event") not in self._expected:
                self._complaints.append(line)
        self._ready.put(None)


def log_entry(line: str) -> dict[str, Any]:
    """Returns the log line as a mapping, an empty one for other lines: an uncaught traceback."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
