"""Unmodified kcat and Python clients against three brokers, one of which fails and returns: no record is lost,
duplicated or reordered.

Each client has its own topic, led by the broker that fails, and producers and consumers that stay open.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.etcd import missing

from .cluster_processes import ClusterProcesses
from .working_clients import working_clients

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.mark.slow
async def test_clients_continue_while_a_broker_fails_and_returns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="kafka")
    caplog.set_level(logging.CRITICAL, logger="aiokafka")
    async with ClusterProcesses(tmp_path) as cluster:
        async with working_clients(cluster) as clients:
            await cluster.kill(1)
            await clients.go_on()
            await cluster.start(1)
            for topic in clients.topics.values():
                await cluster.until_in_sync(topic)
            await clients.go_on()
        await clients.check_ends(cluster)
        cluster.check_no_faults()
