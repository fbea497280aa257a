"""The load generator in C (`pump.c`), for loads that the Python one can't reach.

It is compiled when it is used. It does the same as `bench.pump.pump` with one request for each connection, and checks
each answer in the same way.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .client import Address
from .errors import BenchError

SOURCE: Final = Path(__file__).with_name("pump.c")
_COMPILER: Final = "cc"
_LIMIT_S: Final = 600.0


class CompiledLane(NamedTuple):
    """A connection, and the request that is sent repeatedly."""

    address: Address
    frame: bytes


class CompiledLoad(NamedTuple):
    """The results of a load. `cpu_s` is the generator's, with reading its input and connecting."""

    count: int  # type: ignore[assignment]  # nobody counts the fields of a load
    seconds: float
    cpu_s: float
    p50_us: float
    p99_us: float

    @property
    def generator_busy(self) -> float:
        """The share of the time in which the generator worked, in percent."""
        return self.cpu_s / self.seconds * 100


class CompiledPump:
    """The program, compiled into a folder."""

    def __init__(self, folder: Path) -> None:
        """Compiles it with $CC, or cc. Errors: BenchError with the compiler's message."""
        self._program = folder / "pump"
        command = [*shlex.split(os.environ.get("CC") or _COMPILER), "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
        try:
            done = subprocess.run(
                [*command, str(SOURCE), "-o", str(self._program)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise BenchError(f"the load generator in C needs a compiler: {error}") from error
        if done.returncode:
            raise BenchError(f"the load generator in C doesn't compile: {done.stderr.strip()}")

    def __call__(self, lanes: Sequence[CompiledLane], *, count: int, depth: int, error_position: int) -> CompiledLoad:
        """Sends `count` requests, up to `depth` unanswered on each lane. Errors: BenchError with what went wrong."""
        lines = "".join(f"{lane.address[0]} {lane.address[1]} {lane.frame.hex()}\n" for lane in lanes)
        command = [str(self._program), str(depth), str(count), str(error_position)]
        try:
            done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the load didn't end within {_LIMIT_S:.0f} s") from error
        if done.returncode:
            raise BenchError(done.stderr.strip() or f"the load generator ended with {done.returncode}")
        requests, seconds, cpu_s, p50_us, p99_us = done.stdout.split()
        return CompiledLoad(int(requests), float(seconds), float(cpu_s), float(p50_us), float(p99_us))
