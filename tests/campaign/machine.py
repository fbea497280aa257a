"""The machine of a campaign: one core, the lowest priority, a folder that it empties, processes that it ends.

Every process of a run has `TESTS_OF_CAMPAIGN` with the campaign's folder in its environment, as have its children:
after a run, and before the first, remaining processes of a run are found by it and killed. No other process is touched.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bytecode import with_bytecode

from .kinds import Command, Workplace

MARK = "TESTS_OF_CAMPAIGN"
LOWEST_PRIORITY = 19
POLL_S = 0.5
DISK_EVERY_S = 5.0


def step_back() -> None:
    """Runs on one core, at the lowest priority. Child processes inherit this."""
    os.nice(LOWEST_PRIORITY)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def marked(folder: Path) -> list[int]:
    """Processes of runs below this folder, other than this one. Empty if the system does not show environments."""
    wanted = f"{MARK}={folder}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc/self/environ").exists() else ():
        with contextlib.suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def end_marked(folder: Path) -> int:
    """Kills remaining processes of runs, until there is none. Returns their number."""
    seen: set[int] = set()
    while left := marked(folder):
        for process_id in left:
            seen.add(process_id)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(POLL_S / 10)
    return len(seen)


@dataclass(frozen=True)
class RunEnd:
    """The end of a run's process. `why` is the external reason, or empty."""

    exit_code: int
    seconds: float
    cpu_seconds: float
    why: str


@dataclass(frozen=True)
class RunLimits:
    """External limits of a run: seconds, and free space on the disk."""

    seconds: float
    floor_bytes: int


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def run(command: Command, root: Path, place: Workplace, log: Path, limits: RunLimits) -> RunEnd:
    """Runs it to its end or a limit. KeyboardInterrupt ends it too, and is re-raised. Files in `place.results` stay."""
    emptied(place.results)
    given = {MARK: str(place.folder), "TMPDIR": str(emptied(place.temporary))}
    began_s, before, why = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN), ""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command.words,
            cwd=root,
            env=with_bytecode({**os.environ, **command.env, **given}, place.folder / "bytecode"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        looked_s = began_s
        while process.poll() is None and not why:
            time.sleep(POLL_S)
            now_s = time.monotonic()
            if now_s - began_s > limits.seconds:
                why = f"not done after {limits.seconds:.0f} s"
            elif now_s - looked_s > DISK_EVERY_S:
                looked_s = now_s
                why = "the disk has too little room" if free_bytes(place.folder) < limits.floor_bytes else ""
    finally:
        end_marked(place.folder)
        process.wait()
        shutil.rmtree(place.temporary, ignore_errors=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return RunEnd(process.returncode, time.monotonic() - began_s, cpu_s, why)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
