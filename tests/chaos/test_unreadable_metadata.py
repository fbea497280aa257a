"""Unknown keys in etcd, with real brokers: what depends on them waits, and they can be repaired."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from lowtide.metadata import keys
from lowtide.metadata.store import Delete, Put
from lowtide.protocol.errors import ErrorCode
from tests.etcd import missing

from .cluster_processes import ClusterProcesses
from .serving import run_to_end, serve_command

if missing() is None:
    from lowtide.metadata.etcd import EtcdStore

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PREFIX = b"/lowtide/"
FINE, BROKEN, HIDDEN = "fine", "broken", "hidden"
VALUES = [b"value %d" % number for number in range(10)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    async with ClusterProcesses(tmp_path) as made:
        yield made


async def put(cluster: ClusterProcesses, changes: dict[bytes, bytes | None]) -> dict[bytes, bytes | None]:
    """Writes these values, None for no key, as an operator does. Returns what was there."""
    store = await EtcdStore.open((cluster.etcd.endpoint,))
    async with aclosing(_Closing(store)):
        before = {}
        for key, value in changes.items():
            pair = await store.get(PREFIX + key)
            before[key] = None if pair is None else pair.value
            await store.transact([], [Delete(PREFIX + key) if value is None else Put(PREFIX + key, value)])
        return before


class _Closing:
    def __init__(self, store: EtcdStore) -> None:
        self.aclose = store.close


async def appended(cluster: ClusterProcesses, topic: str) -> None:
    async def produce(leader: int) -> object:
        return await cluster.produce(leader, topic, VALUES)

    await cluster.acknowledged(topic, produce)


async def topic_id_of(cluster: ClusterProcesses, topic: str) -> bytes:
    return (await cluster.metadata(cluster.awake[0], topic)).topics[0].topic_id


def named(cluster: ClusterProcesses, broker_id: int) -> set[str]:
    """Returns the keys that a broker's log names as unreadable."""
    return {
        line["key"]
        for line in cluster.brokers[broker_id].lines
        if str(line.get("event", "")).startswith("metadata key is unreadable")
    }


@pytest.mark.slow
async def test_broken_keys_of_every_kind(cluster: ClusterProcesses) -> None:
    for topic in (FINE, BROKEN, HIDDEN):
        await cluster.create_topic(topic, [[1, 2, 3]])
        await appended(cluster, topic)
    partition = keys.partition(await topic_id_of(cluster, BROKEN), 0)
    broken: dict[bytes, bytes | None] = {
        partition: b"not JSON",
        keys.topic(HIDDEN): b"{",
        keys.topic_config(FINE): b"[1]",
        keys.broker_config(""): b"\xff",
        keys.known_broker(3): b"1",
        keys.client_quotas("user=u"): b"",
        keys.SHUTDOWNS + b"x": b"",
        keys.PARTITIONS + b"x/brokers/1": b"{}",
        keys.CONTROLLER_EPOCH: b"many",
    }
    before = await put(cluster, broken)
    for topic in (FINE, BROKEN, HIDDEN):
        await appended(cluster, topic)  # What was known stays in force.
    seen = {key.decode(errors="replace") for key in broken} - {keys.CONTROLLER_EPOCH.decode()}
    for broker_id in cluster.ids:
        await cluster.until("the keys are named", lambda broker_id=broker_id: _has_named(cluster, broker_id, seen))
    await cluster.kill(*cluster.ids)
    await cluster.start(*cluster.ids)
    await cluster.until_in_sync(FINE)
    await appended(cluster, FINE)
    for broker_id in cluster.ids:
        row = await cluster.partition(BROKEN, of=broker_id)
        assert row is not None
        assert (row.leader_id, row.replica_nodes) == (-1, [])
        answer = (await cluster.metadata(broker_id, HIDDEN)).topics[0]
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in (BROKEN, HIDDEN):
            assert (cluster.directories[broker_id] / f"{topic}-0").is_dir(), "nothing was set aside"
        assert seen - {"known_brokers/3"} <= named(cluster, broker_id), "that one is written at each registration"
    await put(cluster, before)
    for topic in (FINE, BROKEN, HIDDEN):
        await cluster.until_in_sync(topic)
        await appended(cluster, topic)
    _, records = await cluster.fetch((await cluster.until_in_sync(BROKEN)).leader_id, BROKEN, 0)
    assert list(records.values()) == VALUES * 3


async def _has_named(cluster: ClusterProcesses, broker_id: int, keys_seen: set[str]) -> bool:
    return keys_seen <= named(cluster, broker_id)


@pytest.mark.parametrize("prefix", ["lowtide/inside", "lowtide/topics"])
@pytest.mark.slow
async def test_a_prefix_inside_another_clusters_is_refused(
    cluster: ClusterProcesses, tmp_path: Path, prefix: str
) -> None:
    address = f"etcd://{cluster.etcd.endpoint}/{prefix}"
    refused = await asyncio.to_thread(run_to_end, serve_command(tmp_path / "other", "node.id=1", metadata=address))
    assert refused.returncode == 2
    assert f"the prefix /{prefix}/ in etcd lies inside /lowtide/, which another cluster has" in refused.stderr
    words = [
        sys.executable,
        "-m",
        "lowtide.cli.main",
        "backup",
        "--to",
        str(tmp_path / "backup"),
        "--metadata",
        address,
    ]
    done = await asyncio.to_thread(run_to_end, words)
    assert done.returncode == 1
    assert f"the prefix /{prefix}/ in etcd lies inside /lowtide/" in done.stderr
    await cluster.create_topic(FINE, [[1, 2, 3]])
    await appended(cluster, FINE)
    cluster.check_no_faults()
