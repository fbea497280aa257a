"""Log lines of a cluster: starts and recoveries, elections, fencing, reassignments, changed configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowtide import __version__
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.etcd import missing

from .cluster_processes import ClusterProcesses

TOPIC = "told"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(missing() is not None, reason=str(missing()))]


async def until_told(cluster: ClusterProcesses, event: str, **values: Any) -> dict[str, Any]:
    """Returns the first such line of any broker, with these values."""
    found: list[dict[str, Any]] = []

    async def told() -> bool:
        for broker in [*(each for _, each in cluster.past), *cluster.brokers.values()]:
            found.extend(line for line in broker.lines if line.get("event") == event and values.items() <= line.items())
        return bool(found)

    await cluster.until(f"some broker says: {event} {values}", told)
    return found[0]


async def test_a_cluster_s_events_are_logged(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path)
    async with cluster:
        ready = await until_told(cluster, "ready", node_id=1)
        assert ready["version"] == __version__
        assert ready["listeners"] == [f"PLAINTEXT://{ready['address']}"]
        await cluster.create_topic(TOPIC, [[1, 2]])
        assert (await cluster.produce(1, TOPIC, [b"x" * 1000])).error_code == ErrorCode.NONE

        change = AlterableConfig(name="retention.ms", config_operation=0, value="86400000")
        resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[change])
        await cluster.ask(2, IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
        told = await until_told(cluster, "configuration changed", name=TOPIC, key="retention.ms")
        assert (told["old_value"], told["new_value"]) == (None, "86400000")

        moved = ReassignableTopic(name=TOPIC, partitions=[ReassignablePartition(partition_index=0, replicas=[1, 2, 3])])
        await cluster.ask(1, AlterPartitionReassignmentsRequest(topics=[moved], timeout_ms=10_000), 0)
        begun = await until_told(cluster, "reassignment begins")
        assert begun["some_partitions"] == [
            {"partition": f"{TOPIC}-0", "replicas": [1, 2, 3], "adding": [3], "removing": []}
        ]
        ended = await until_told(cluster, "reassignment ends")
        assert ended["some_partitions"] == [{"partition": f"{TOPIC}-0", "replicas": [1, 2, 3]}]

        await cluster.until_in_sync(TOPIC)
        await cluster.kill(1)
        await until_told(cluster, "broker is fenced", broker=1)
        elected = await until_told(cluster, "leaders are elected", old_leader=1)
        (row,) = elected["some_partitions"]
        assert (elected["partitions"], row["partition"], row["leader_epoch"] > 0) == (1, f"{TOPIC}-0", True)
        assert elected["new_leader"] in {2, 3}

        (segment,) = cluster.directories[1].glob(f"{TOPIC}-0/*.log")
        with segment.open("ab") as file:
            file.write(b"torn")
        await cluster.start(1)
        await until_told(cluster, "broker is unfenced", broker=1)
        recovered = await until_told(
            cluster, "log directory was recovered after an unclean stop", directory=str(cluster.directories[1])
        )
        assert (recovered["logs"] >= 1, recovered["bytes_cut"]) == (True, len(b"torn"))
        assert recovered["duration_ms"] >= 0
        mended = await until_told(cluster, "log was repaired", partition=f"{TOPIC}-0")
        assert (mended["bytes_cut"], mended["log_end_offset"]) == (len(b"torn"), 1)
