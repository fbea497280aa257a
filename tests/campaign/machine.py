"""The machine of a campaign: few cores, the lowest priority, a folder that it empties, processes that it ends.

Every process of a run has `TESTS_OF_CAMPAIGN` with the campaign's folder in its environment, as have its children:
after a run, and before the first, remaining processes of a run are found by it and killed. No other process is touched.
"""

from __future__ import annotations

import contextlib
import os
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
LOOK_EVERY_S = 5.0


def step_back(nice: int = LOWEST_PRIORITY, *, cores: int | None = None) -> None:
    """Runs at a low priority, and on so many cores if they are given. Child processes inherit this.

    Linux shares the processor among sessions first (autogroups), and a nice value counts within a session only. So the
    session steps back too: all that was started in the same terminal.
    """
    os.nice(nice)
    set_session_back("self", nice)
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


def set_session_back(process_id: int | str, nice: int = LOWEST_PRIORITY) -> None:
    """Gives the session of a process a low priority, unless it has it. Does nothing on other systems."""
    group = Path(f"/proc/{process_id}/autogroup")
    with contextlib.suppress(OSError):  # Autogroups are off, the process has ended, or was set back a moment ago.
        if not group.read_text(encoding="utf-8").endswith(f" nice {nice}\n"):
            group.write_text(str(nice), encoding="utf-8")


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


class Running:
    """Runs the process of a run until it ends, or for as long as it may. Keeps the files in `place.results`."""

    def __init__(self, command: Command, root: Path, place: Workplace, limits: RunLimits) -> None:
        emptied(place.results)
        given = {MARK: str(place.folder), "TMPDIR": str(emptied(place.temporary))}
        self._place, self._limits = place, limits
        self._began_s = self._looked_s = time.monotonic()
        with place.log.open("wb") as output:
            self._process = subprocess.Popen(
                command.words,
                cwd=root,
                env=with_bytecode({**os.environ, **command.env, **given}, place.folder / "bytecode"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        set_session_back(self._process.pid)

    def ended(self) -> RunEnd | None:
        """Returns the end once it has come; a limit ends the process."""
        why, now_s = "", time.monotonic()
        if now_s - self._began_s > self._limits.seconds:
            why = f"not done after {self._limits.seconds:.0f} s"
        elif now_s - self._looked_s > LOOK_EVERY_S:
            self._looked_s = now_s
            why = "the disk has too little room" if free_bytes(self._place.folder) < self._limits.floor_bytes else ""
            for process_id in marked(self._place.folder):  # Some have begun a session.
                set_session_back(process_id)
        if why:
            self._kill()
        process_id, status, used = os.wait4(self._process.pid, 0 if why else os.WNOHANG)
        if not process_id:
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        end_marked(self._place.folder)
        shutil.rmtree(self._place.temporary, ignore_errors=True)
        seconds = time.monotonic() - self._began_s
        return RunEnd(self._process.returncode, seconds, used.ru_utime + used.ru_stime, why)

    def end(self) -> None:
        """Ends it at once, without a result."""
        self._kill()
        self._process.wait()
        shutil.rmtree(self._place.temporary, ignore_errors=True)

    def _kill(self) -> None:
        """The process itself by its id, too: its environment may not be there yet."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        end_marked(self._place.folder)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
