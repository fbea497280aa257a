"""The same through kcat (librdkafka): what a broker costs when a real client loads it. kcat itself is mostly the limit of the speed."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path

from .errors import BenchError
from .loads import PARTITIONS
from .measure import Amounts, Figures, Workload, cost_of
from .targets import Target
from .topics import check_ends, topic_on

LINE_BYTES = 1024
_LIMIT_S = 300.0


def through_kcat(target: Target, amounts: Amounts) -> Figures:
    """Produce lines with kcat, then consume them."""
    if shutil.which("kcat") is None:
        raise BenchError("kcat is not installed")
    count = amounts.kcat_records
    lines = _lines(target.scratch, count)
    figures: Figures = {}
    with topic_on(target, PARTITIONS) as topic:
        base = ["kcat", "-q", "-b", target.bootstrap, "-t", topic.name]
        work = {
            "produce": [*base, "-P", "-z", "none", "-X", "queue.buffering.max.messages=1000000", "-l", str(lines)],
            "consume": [*base, "-C", "-o", "beginning", "-c", str(count)],
        }
        for name, command in work.items():
            before = _children_cpu_s()
            with cost_of(target) as cost:
                _run(command)
            figures |= {
                f"{name}, records/s": count / cost.seconds,
                f"{name}, broker CPU s per million records": cost.cpu_s / count * 1e6,
                f"{name}, kcat's own CPU s per million records": (_children_cpu_s() - before) / count * 1e6,
            }
            check_ends(topic, count)
    return figures


def _run(command: list[str]) -> None:
    try:
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise BenchError(f"kcat did not end within {_LIMIT_S:.0f} s") from None
    if ended.returncode:
        raise BenchError(f"kcat ended with exit code {ended.returncode}: {ended.stderr.decode(errors='replace').strip()}")


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lines(folder: Path, count: int) -> Path:
    """A file of so many lines that differ, made once; hexadecimal digits, so that nothing in them ends a line."""
    path = folder / f"lines-{count}"
    if not path.exists():
        with path.open("w") as file:
            digits = os.urandom(LINE_BYTES).hex()
            for number in range(count):
                place = number % LINE_BYTES
                file.write(f"{number:08x}{digits[place : place + LINE_BYTES - 9]}\n")
    return path


WORKLOADS = {
    "kcat": Workload(
        run=through_kcat,
        says="records of 1 KiB with kcat, 3 partitions, no compression",
        headline=("produce, broker CPU s per million records", "consume, broker CPU s per million records"),
    ),
}
