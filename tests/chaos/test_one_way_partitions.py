"""Paths between brokers that are cut in one direction: packets of one are lost, packets of the other arrive.

This needs network namespaces, which root has on Linux. Without them the proxies of the other tests remain, which hold
requests or answers of one connection.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.etcd import missing

from .cluster_load import PartitionWork
from .cluster_processes import ClusterProcesses
from .namespaces import Namespaces, missing_namespaces

REASON = missing() or missing_namespaces()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

TOPIC = "cut"


@pytest.mark.parametrize(("origin", "target"), [(3, 1), (1, 3)], ids=["requests are lost", "answers are lost"])
async def test_a_follower_is_cut_off_in_one_direction(tmp_path: Path, origin: int, target: int) -> None:
    """The broker stays registered; the leader removes it from the ISR, continues, and readmits it later."""
    with Namespaces((1, 2, 3)) as namespaces, namespaces.entered():
        async with ClusterProcesses(tmp_path, namespaces=namespaces) as cluster:
            await cluster.create_topic(TOPIC, [[1, 2, 3]])
            work = PartitionWork(cluster, TOPIC)
            work.start()
            try:
                await work.until("produced", 10)
                namespaces.cut(origin, target)
                await cluster.until_in_sync(TOPIC, members={1, 2})
                await work.until("produced", 20)
                await work.until("deleted", 3)
                namespaces.mend(origin, target)
                await cluster.until_in_sync(TOPIC)
                await work.until("produced", 10)
            finally:
                await work.stop()
            await work.check()
            cluster.check_no_faults()
