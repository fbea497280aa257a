"""Kafka Streams with exactly-once processing while the brokers of a cluster of three restart, and one is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lowtide import LowtideCluster

from .members import Member, outputs_of, until
from .streaming import EACH_PROTOCOL, QUICK_STREAMS, Join, WordCount
from .test_three_brokers import kill_each_in_turn, partitions_of
from .tools import JavaClient
from .topics import Topics

pytestmark = pytest.mark.interop

REPLICAS = 3
TRANSACTION_TIMEOUT_MS = "60000"
"""An instance ends if it commits a transaction that the coordinator has aborted: with Apache Kafka 4.4, too, it gets
INVALID_TXN_STATE. On a busy machine brokers restart for longer than the default here."""

LINES, ORDERS = 50, 300
"""Written before, between and after the faults."""

CONFIG = {
    "min.insync.replicas": "2",
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    **{name.replace("_", "."): value for name, value in QUICK_STREAMS.items()},
}


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def java(jars: Path, three: LowtideCluster, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """The program with Kafka Streams, against the three."""
    return JavaClient(jars, three.bootstrap, tmp_path_factory.mktemp("java"))


def restart_each_in_turn(cluster: LowtideCluster) -> None:
    """Restarts the brokers one by one, each when all replicas are in sync."""
    for broker_id in cluster.broker_ids:
        cluster.stop_broker(broker_id)
        time.sleep(0.5)
        cluster.start_broker(broker_id)
        until(lambda: all(len(row.isrs) == len(row.replicas) for row in partitions_of(cluster)), lambda: broker_id)


@EACH_PROTOCOL
def test_results_are_exact_while_brokers_restart_and_die(
    three: LowtideCluster, java: JavaClient, tmp_path: Path, protocol: str
) -> None:
    """A word count of two instances, and a join, over a rolling restart and a SIGKILL of each broker in turn."""
    topics = Topics(three.bootstrap)
    words = WordCount(topics, java, tmp_path, f"words-{protocol}", replicas=REPLICAS)
    join = Join(topics, java, tmp_path, f"join-{protocol}", replicas=REPLICAS)
    words.make("lines", "counts")
    join.make_all()
    with ExitStack() as stack:
        started = [start(protocol, timeout=TRANSACTION_TIMEOUT_MS) for start in (words.start, words.start, join.start)]
        members: list[Member] = [stack.enter_context(member) for member in started]

        def complete() -> None:
            until(lambda: words.is_complete() and join.is_complete(), lambda: outputs_of(*members))

        for fault in (lambda: None, lambda: restart_each_in_turn(three), lambda: kill_each_in_turn(three)):
            words.write(LINES)
            join.write(ORDERS)
            fault()
            complete()
        words.check()
        join.check()
        for member in members:
            member.leave()
