"""The usage of a broker: CPU time and resident memory of its processes, children included.

CPU time comes from the kernel's clock of each process, which counts nanoseconds and the threads that have ended;
`/proc/<pid>/stat` has the same sum in hundredths of a second, too coarse for a few thousand requests. Children that
were waited for are added from there. Where there is no /proc (macOS), both are `nan`, and the tables show a dash.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
UNKNOWN = math.nan

_PROCESS_CLOCK = 2
"""The lowest bits of a clock id for the CPU time of a process. Source: clock_getcpuclockid(3), posix-timers.h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """The fields of a line of `/proc/<pid>/stat` that are used here."""

    parent: int
    waited_ticks: int
    """CPU time of children that have ended and been waited for, in the system's clock ticks."""


def parse_status(line: str) -> ProcessStatus:
    """Reads a line of `/proc/<pid>/stat`.

    The name may contain blanks and brackets, so counting starts behind the last bracket.
    """
    fields = line.rpartition(")")[2].split()
    return ProcessStatus(parent=int(fields[1]), waited_ticks=int(fields[13]) + int(fields[14]))


def family(roots: Iterable[int], parents: Mapping[int, int]) -> list[int]:
    """Returns the roots and all their descendants; `parents` has the parent of every process."""
    children: dict[int, list[int]] = {}
    for process, parent in parents.items():
        children.setdefault(parent, []).append(process)
    found = list(dict.fromkeys(roots))
    for process in found:
        found.extend(child for child in children.get(process, []) if child not in found)
    return found


def processes(roots: Sequence[int]) -> list[int]:
    """Returns the roots and their descendants that still run."""
    parents = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        status = _status(int(entry.name)) if entry.name.isdigit() else None
        if status is not None:
            parents[int(entry.name)] = status.parent
    return [process for process in family(roots, parents) if process in parents]


def cpu_seconds(roots: Sequence[int]) -> float:
    """Returns the CPU time so far of the roots and their descendants; `nan` if unknown."""
    found = processes(roots)
    return sum(map(_cpu_of, found)) if found else UNKNOWN


def cpu_by_process(roots: Sequence[int]) -> dict[int, float]:
    """Returns the CPU time so far of each root and descendant, without that of children that have ended."""
    return {process: _own_cpu_of(process) for process in processes(roots)}


def resident_bytes(roots: Sequence[int]) -> float:
    """Returns the resident memory of the roots and their descendants; `nan` if unknown. Shared pages count in each."""
    pages, seen = 0, False
    for process in processes(roots):
        try:
            pages += int((PROC / str(process) / "statm").read_text().split()[1])
            seen = True
        except OSError:
            continue
    return float(pages * os.sysconf("SC_PAGE_SIZE")) if seen else UNKNOWN


def _status(process: int) -> ProcessStatus | None:
    try:
        return parse_status((PROC / str(process) / "stat").read_text())
    except OSError:
        return None


def _cpu_of(process: int) -> float:
    status = _status(process)
    return _own_cpu_of(process) + (status.waited_ticks / os.sysconf("SC_CLK_TCK") if status is not None else 0.0)


def _own_cpu_of(process: int) -> float:
    try:
        return time.clock_gettime(~process << 3 | _PROCESS_CLOCK)
    except OSError:
        return 0.0
