"""All workloads by name, in the order in which they run."""

from __future__ import annotations

from . import deletes, failures, groups, kcat, lifetimes, loads
from .measure import Workload

_LIFETIMES = lifetimes.WORKLOADS

WORKLOADS: dict[str, Workload] = {
    "start": _LIFETIMES["start"],
    **loads.WORKLOADS,
    **kcat.WORKLOADS,
    **deletes.WORKLOADS,
    **groups.WORKLOADS,
    "connections": _LIFETIMES["connections"],
    "partitions": _LIFETIMES["partitions"],
    "kill": _LIFETIMES["kill"],
    **failures.WORKLOADS,
}

OF_CLUSTERS = ("batches", "closed", *failures.WORKLOADS, "partitions")
"""What runs on several brokers by default; everything may be asked for."""

FLOOR = "floor"
"""Runs once, without a broker."""
