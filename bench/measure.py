"""The definition of a workload: work on one target, with figures by name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .figures import MEBIBYTE
from .pump import Load
from .targets import Target

Figures = dict[str, float]
"""Figures by name and unit, in the order of printing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The amount of work of each workload."""

    batches: int = 8192
    """Batches of sixteen records of 1 KiB: 128 MiB."""

    singles: int = 16_384
    """Requests of one record."""

    kcat_records: int = 150_000
    closed: int = 4000
    """Requests on one connection; five times as many on fifty."""

    closed_connections: int = 50
    metadata: int = 20_000
    deletes: int = 200
    """Deletes by one offset; fewer than a segment has records."""

    segments: Sequence[int] = (1, 100, 1000)
    trimmed_s: float = 180.0
    """How long a topic is filled and deleted at the same time."""

    purged_s: float = 20.0
    """How long records are deleted every 100 ms, and as long not."""

    partitions: int = 1000
    bytes_before_kill: int = 1024 * MEBIBYTE
    connections: int = 2000
    logins: int = 1000
    """Logins at 200 a second, and as many at once."""

    failovers: int = 10
    rebalances: int = 1000
    commits: int = 20_000
    """Requests, of ten offsets each."""

    committing_groups: int = 20
    transactions: int = 500
    idle_s: float = 3.0
    settle_s: float = 0.5
    """A pause for work of a broker that is not part of the measurement."""


TINY = Amounts(
    batches=24,
    singles=30,
    kcat_records=200,
    closed=20,
    closed_connections=5,
    metadata=50,
    deletes=5,
    segments=(1, 3),
    trimmed_s=0.3,
    purged_s=0.4,
    partitions=5,
    bytes_before_kill=3 * MEBIBYTE,
    connections=20,
    logins=10,
    failovers=1,
    rebalances=3,
    commits=20,
    committing_groups=2,
    transactions=3,
    idle_s=0.05,
    settle_s=0.0,
)
"""Enough to see that everything works; its figures have no meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One row, or a few that belong together."""

    run: Callable[[Target, Amounts], Figures]
    says: str
    """A line for the head of the table."""

    headline: Sequence[str]
    """The figures that the summary has."""

    warms: bool = True
    """Whether rounds before the measured ones make sense."""

    starts: bool = False
    """Whether it stops or starts the broker, so that it cannot be run on a broker given by address."""

    over_tls: bool = False
    """Whether it needs a listener with TLS."""

    several: bool = False
    """Whether it needs several brokers, and cannot be run on one."""


@dataclass(slots=True)
class Cost:
    """The broker's usage during some work."""

    cpu_s: float = 0.0
    seconds: float = 0.0


@contextmanager
def cost_of(target: Target) -> Iterator[Cost]:
    """Measures the broker's CPU time and the wall time within a `with`."""
    cost = Cost()
    cpu_s, began = target.cpu_s(), time.perf_counter()
    yield cost
    cost.seconds, cost.cpu_s = time.perf_counter() - began, target.cpu_s() - cpu_s


def idle_percent(target: Target, seconds: float) -> float:
    """Returns the share of a core that the broker uses without requests."""
    with cost_of(target) as cost:
        time.sleep(seconds)
    return cost.cpu_s / cost.seconds * 100


def generator(load: Load) -> Figures:
    """Returns how busy the load generator was, and its cost of a request."""
    return {
        "generator busy, %": load.generator_busy,
        "generator CPU, us a request": load.generator_cpu_s / load.count * 1e6,
    }
