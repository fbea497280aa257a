"""Several brokers in one process: each stops, fails and returns alone, at its own address, and the others continue."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ClusterMetadata

from lowtide import LowtideCluster
from lowtide.broker.config.broker_config import ConfigError

DEADLINE_S = 120.0


def until(condition: Callable[..., bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"the condition does not hold after {DEADLINE_S} s"
        time.sleep(0.02)


def seen(cluster: LowtideCluster, broker_id: int) -> ClusterMetadata:
    """Returns the cluster according to one broker."""
    return AdminClient({"bootstrap.servers": cluster.address(broker_id), "log_level": 0}).list_topics(timeout=60)


def brokers_seen(cluster: LowtideCluster, broker_id: int) -> dict[int, str]:
    return {each.id: f"{each.host}:{each.port}" for each in seen(cluster, broker_id).brokers.values()}


def test_three_brokers_are_one_cluster_and_keep_to_their_own_folders(tmp_path: Path) -> None:
    with LowtideCluster(brokers=3, data_directory=tmp_path) as cluster:
        addresses = {broker_id: cluster.address(broker_id) for broker_id in cluster.broker_ids}
        assert list(addresses) == [1, 2, 3]
        assert cluster.bootstrap == ",".join(addresses.values())
        for broker_id in addresses:
            until(lambda broker_id=broker_id: brokers_seen(cluster, broker_id) == addresses)
        assert len({seen(cluster, broker_id).cluster_id for broker_id in addresses}) == 1
    for broker_id in addresses:
        properties = (tmp_path / f"broker-{broker_id}" / "meta.properties").read_text()
        assert f"node.id={broker_id}\n" in properties
    assert (tmp_path / "lowtide-metadata.sqlite").exists()


def test_a_broker_that_stops_or_is_killed_leaves_the_cluster_and_returns_at_its_address() -> None:
    with LowtideCluster(brokers=3) as cluster:
        everybody = {broker_id: cluster.address(broker_id) for broker_id in cluster.broker_ids}
        for end in (cluster.stop_broker, cluster.kill_broker):
            end(2)
            until(lambda: set(brokers_seen(cluster, 1)) == {1, 3})
            assert cluster.address(2) == everybody[2]
            cluster.start_broker(2)
            until(lambda: brokers_seen(cluster, 2) == brokers_seen(cluster, 3) == everybody)


@pytest.mark.slow
def test_a_failed_broker_is_fenced_when_its_lease_ends_and_its_successor_need_not_wait() -> None:
    with LowtideCluster(brokers=2) as cluster:
        cluster.kill_broker(1)
        assert set(brokers_seen(cluster, 2)) == {1, 2}
        cluster.start_broker(1)
        assert set(brokers_seen(cluster, 1)) == {1, 2}


@pytest.mark.slow
def test_the_cluster_survives_that_all_of_its_brokers_stop(tmp_path: Path) -> None:
    with LowtideCluster(brokers=2, data_directory=tmp_path) as cluster:
        before = seen(cluster, 1).cluster_id
        everybody = {broker_id: cluster.address(broker_id) for broker_id in cluster.broker_ids}
        cluster.restart()
        until(lambda: brokers_seen(cluster, 2) == everybody)
        assert seen(cluster, 2).cluster_id == before
    with LowtideCluster(brokers=2, data_directory=tmp_path) as cluster:
        assert seen(cluster, 1).cluster_id == before


def test_a_setting_that_each_broker_must_have_alone_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"log\.dirs=/tmp is invalid for several brokers of one process: each has its own"
    ):
        LowtideCluster(brokers=2, config={"log.dirs": "/tmp"}).start()


@pytest.mark.slow
def test_a_folder_that_another_cluster_uses_is_refused_and_left_alone(tmp_path: Path) -> None:
    with LowtideCluster(brokers=2, data_directory=tmp_path) as first:
        with pytest.raises(Exception, match="another process uses this folder"):
            LowtideCluster(brokers=2, data_directory=tmp_path).start()
        assert set(brokers_seen(first, 1)) == {1, 2}
