"""Suspends a process of a test, as a suspended virtual machine: it keeps its connections and does not answer."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

STOPPED_WITHIN_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.001
_RUNNING: Final = frozenset("RSDI")
"""States of a thread that has not stopped yet, in /proc."""


def freeze(process_id: int) -> None:
    """Sends SIGSTOP, and waits until the process has stopped if there is /proc to show it.

    Errors: TimeoutError; ProcessLookupError if there is no such process.
    """
    os.kill(process_id, signal.SIGSTOP)
    give_up = time.monotonic() + STOPPED_WITHIN_S
    while any(state in _RUNNING for state in _states(process_id)):
        if time.monotonic() > give_up:
            raise TimeoutError(f"process {process_id} runs on after SIGSTOP")
        time.sleep(_LOOK_AGAIN_S)


def thaw(process_id: int) -> None:
    """Sends SIGCONT. Errors: ProcessLookupError."""
    os.kill(process_id, signal.SIGCONT)


def _states(process_id: int) -> list[str]:
    """Returns the states of its threads; none without /proc."""
    found = []
    for thread in Path(f"/proc/{process_id}/task").glob("*/stat"):
        try:
            found.append(thread.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0])
        except OSError:  # It has ended.
            continue
    return found
