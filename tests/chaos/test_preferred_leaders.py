"""Leadership returns to the preferred replicas by itself, some time after a broker that was down is in sync again."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide import LowtideCluster

PARTITIONS = 6
LIMIT_S = 120.0
CONFIG = {"leader.imbalance.check.interval.seconds": "1"}


def leaders(address: str) -> list[int]:
    known = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=60)
    return [each.leader for _, each in sorted(known.topics["t"].partitions.items())]


@pytest.mark.slow
def test_a_broker_that_returns_becomes_preferred_leader_again() -> None:
    """The controller too may have been down: another one takes over."""
    with LowtideCluster(brokers=3, config=CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values():
            made.result()
        wanted = leaders(cluster.address(1))
        assert set(wanted) == {1, 2, 3}
        for away in cluster.broker_ids:
            stays = cluster.address(next(each for each in cluster.broker_ids if each != away))
            cluster.stop_broker(away)
            assert away not in leaders(stays)
            cluster.start_broker(away)
            deadline = time.monotonic() + LIMIT_S
            while leaders(stays) != wanted:
                assert time.monotonic() < deadline, (leaders(stays), wanted)
                time.sleep(0.05)
