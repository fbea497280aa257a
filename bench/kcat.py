"""Measures the cost of a broker under a real client, kcat (librdkafka).

The speed is mostly limited by kcat itself.
"""

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
from .tls import Certificate
from .topics import check_ends, topic_on

LINE_BYTES = 1024
_LIMIT_S = 300.0


def through_kcat(target: Target, amounts: Amounts) -> Figures:
    """Produces lines with kcat, then consumes them."""
    return _measured(target, amounts.kcat_records, target.bootstrap)


def through_kcat_over_tls(target: Target, amounts: Amounts) -> Figures:
    """Does the same over TLS, with a separate broker."""
    certificate = Certificate.of(target.scratch)
    secured = target.secured(certificate.chain)
    try:
        secured.target.start()
        words = ["-X", "security.protocol=SSL", "-X", f"ssl.ca.location={certificate.authorities}"]
        return _measured(secured.target, amounts.kcat_records, f"{secured.tls[0]}:{secured.tls[1]}", *words)
    finally:
        secured.target.close()


def _measured(target: Target, count: int, bootstrap: str, *words: str) -> Figures:
    """Measures this number of records through kcat with further options."""
    if shutil.which("kcat") is None:
        raise BenchError("kcat is not installed")
    lines = _lines(target.scratch, count)
    figures: Figures = {}
    with topic_on(target, PARTITIONS) as topic:
        base = ["kcat", "-q", "-b", bootstrap, "-t", topic.name, *words]
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
        ended = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"kcat did not end within {_LIMIT_S:.0f} s") from None
    if ended.returncode:
        raise BenchError(
            f"kcat ended with exit code {ended.returncode}: {ended.stderr.decode(errors='replace').strip()}"
        )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _lines(folder: Path, count: int) -> Path:
    """Returns a file with this number of different lines of hexadecimal digits, which is created once."""
    path = folder / f"lines-{count}"
    if not path.exists():
        with path.open("w") as file:
            digits = os.urandom(LINE_BYTES).hex()
            for number in range(count):
                place = number % LINE_BYTES
                file.write(f"{number:08x}{digits[place : place + LINE_BYTES - 9]}\n")
    return path


_HEADLINE = ("produce, broker CPU s per million records", "consume, broker CPU s per million records")
WORKLOADS = {
    "kcat": Workload(
        run=through_kcat, says="records of 1 KiB with kcat, 3 partitions, no compression", headline=_HEADLINE
    ),
    "tls": Workload(
        run=through_kcat_over_tls, says="the same over TLS", headline=_HEADLINE, starts=True, over_tls=True
    ),
}
