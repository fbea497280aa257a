"""The inside of a `LowtideCluster` that runs in the test's process."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide.testing.brokers_thread import ThreadOfBrokers
from lowtide.testing.cluster import LowtideCluster


def _host(cluster: LowtideCluster) -> ThreadOfBrokers:
    host = cluster._host
    assert isinstance(host, ThreadOfBrokers), "it was started with in_process=True"
    return host


def broker_of(cluster: LowtideCluster) -> Any:
    """Its sole broker."""
    (broker,) = _host(cluster).brokers.cluster.brokers.values()
    return broker


def loop_of(cluster: LowtideCluster) -> asyncio.AbstractEventLoop:
    """The event loop of its brokers."""
    loop = _host(cluster).loop
    assert loop is not None
    return loop
