"""A controlled shutdown: others become leaders before the broker ends, without waiting for the end of its lease."""

from __future__ import annotations

import time

from confluent_kafka.admin import AdminClient, NewTopic

from lowtide import LowtideCluster

PARTITIONS = 12
SESSION_S = 240
"""A lease that is too long for any test to wait for it."""

CONFIG = {"broker.session.timeout.ms": str(SESSION_S * 1000)}


def leaders(address: str) -> dict[int, tuple[int, list[int]]]:
    """Leader and ISR of each partition, according to one broker."""
    known = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=60)
    return {number: (each.leader, sorted(each.isrs)) for number, each in known.topics["t"].partitions.items()}


def test_a_stop_moves_leaderships_first_and_ends_isr_memberships() -> None:
    with LowtideCluster(brokers=3, config=CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("t", PARTITIONS, 3)]).values():
            made.result()
        stopping, *others = cluster.broker_ids
        before = leaders(cluster.address(others[0]))
        assert any(leader == stopping for leader, _ in before.values())
        begun = time.monotonic()
        cluster.stop_broker(stopping)
        assert time.monotonic() - begun < SESSION_S / 2
        for other in others:
            after = leaders(cluster.address(other))
            assert {tuple(isr) for _, isr in after.values()} == {tuple(others)}
            assert {leader for leader, _ in after.values()} == set(others)


def test_brokers_that_all_stop_do_not_wait_for_each_other() -> None:
    cluster = LowtideCluster(brokers=3, config=CONFIG)
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic("t", PARTITIONS, 3), NewTopic("alone", PARTITIONS, 1)]).values():
            made.result()
        begun = time.monotonic()
    assert time.monotonic() - begun < SESSION_S / 2
