"""All workloads by name, in the order in which they run."""

from __future__ import annotations

from . import deletes, kcat, lifetimes, loads
from .measure import Workload

_LIFETIMES = lifetimes.WORKLOADS

WORKLOADS: dict[str, Workload] = {
    "start": _LIFETIMES["start"],
    **loads.WORKLOADS,
    **kcat.WORKLOADS,
    **deletes.WORKLOADS,
    "connections": _LIFETIMES["connections"],
    "partitions": _LIFETIMES["partitions"],
    "kill": _LIFETIMES["kill"],
}

FLOOR = "floor"
"""Runs once, without a broker."""
