"""All workloads by name, in the order in which they run."""

from __future__ import annotations

from . import deletes, failures, groups, kcat, lifetimes, loads, logins, purges, trims
from .measure import Workload

_LIFETIMES = lifetimes.WORKLOADS

WORKLOADS: dict[str, Workload] = {
    "start": _LIFETIMES["start"],
    **loads.WORKLOADS,
    **kcat.WORKLOADS,
    **logins.WORKLOADS,
    **deletes.WORKLOADS,
    **purges.WORKLOADS,
    **trims.WORKLOADS,
    **groups.WORKLOADS,
    "connections": _LIFETIMES["connections"],
    "partitions": _LIFETIMES["partitions"],
    "kill": _LIFETIMES["kill"],
    **failures.WORKLOADS,
}

OF_CLUSTERS = ("batches", "closed", *failures.WORKLOADS, "partitions")
"""The workloads that run on several brokers by default; others may be requested."""

FLOOR = "floor"
"""Runs once, without a broker."""
