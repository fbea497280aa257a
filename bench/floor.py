"""Measures the limits of the load generator and of this machine, without a broker.

The generator runs the shapes of the workloads against `bench/responder.py`, which only counts bytes. A broker's rate
near these rates would be the generator's, not the broker's. What a broker must do with a batch at least is measured by
`bench/storing_responder.py`.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .client import Address
from .deletes import append_and_sync_us
from .figures import percentile
from .measure import Amounts, Figures
from .pump import Lane, Load, pump
from .usage import cpu_seconds

_ROOT = Path(__file__).resolve().parents[1]
_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a load."""

    request_bytes: int
    answer_bytes: int
    connections: int
    depth: int
    count: int


def shapes(amounts: Amounts) -> dict[str, Shape]:
    """Returns the shapes of the workloads, by name."""
    many = amounts.closed_connections
    return {
        "batches of 16 KiB": Shape(
            request_bytes=16_700, answer_bytes=60, connections=3, depth=5, count=amounts.batches
        ),
        "single 1 KiB": Shape(request_bytes=1200, answer_bytes=60, connections=3, depth=5, count=amounts.singles),
        "closed, one connection": Shape(
            request_bytes=240, answer_bytes=60, connections=1, depth=1, count=amounts.closed
        ),
        f"closed, {many} connections": Shape(
            request_bytes=240, answer_bytes=60, connections=many, depth=1, count=5 * amounts.closed
        ),
        "consume 1 MiB": Shape(
            request_bytes=90, answer_bytes=1 << 20, connections=3, depth=1, count=max(amounts.batches // 16, 1)
        ),
    }


@contextmanager
def _responder(shape: Shape, stored_in: Path | None = None) -> Iterator[tuple[Address, int]]:
    """Runs a responder for this shape in a separate process; yields its address and process id.

    `stored_in`: the file of one that stores.
    """
    module, paths = ("bench.responder", []) if stored_in is None else ("bench.storing_responder", [str(stored_in)])
    command = [sys.executable, "-m", module, str(shape.request_bytes), str(shape.answer_bytes), *paths]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield ("127.0.0.1", int(process.stdout.readline())), process.pid
    finally:
        process.stdin.close()
        try:
            process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _load(shape: Shape, address: Address) -> Load:
    request = bytes(shape.request_bytes)
    lanes = [
        Lane(address, itertools.repeat(request), buffer_bytes=shape.answer_bytes + (1 << 16))
        for _ in range(shape.connections)
    ]
    return pump(lanes, count=shape.count, depth=shape.depth)


def floor(scratch: Path, amounts: Amounts) -> Figures:
    """Measures rates without a broker, and the time of a durable write on this machine."""
    figures: Figures = {}
    loads = shapes(amounts)
    for name, shape in loads.items():
        with _responder(shape) as (address, _):
            load = _load(shape, address)
        figures[f"{name}, requests/s"] = load.count / load.seconds
        figures[f"{name}, p50 us"] = load.p50_us
        figures[f"{name}, generator CPU us a request"] = load.generator_cpu_s / load.count * 1e6
    batches = loads["batches of 16 KiB"]
    with _responder(batches, scratch / "stored") as (address, process):
        before_s = cpu_seconds([process])
        load = _load(batches, address)
        spent_s = cpu_seconds([process]) - before_s
    (scratch / "stored").unlink()
    figures["batches of 16 KiB received, checked and written, CPU us a request"] = spent_s / load.count * 1e6
    time.sleep(amounts.settle_s)
    figures["append + fdatasync, p50 us"] = percentile(append_and_sync_us(scratch), 0.5)
    return figures
