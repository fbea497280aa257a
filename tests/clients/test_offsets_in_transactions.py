"""Each client consumes, transforms and produces in transactions: every record once, despite aborts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide.testing.cluster import LowtideCluster

from .transformers import TRANSFORMERS, WAIT_S, Transformer

PARTITIONS, RECORDS, AT_A_TIME = 2, 20, 5
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3, config=SETTINGS) as running:
        yield running


class Pipe:
    """Two topics and a group."""

    def __init__(self, cluster: LowtideCluster, name: str) -> None:
        self.bootstrap, self.name = cluster.bootstrap, name
        self.source, self.target = f"{name}-in", f"{name}-out"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for topic in (self.source, self.target):
            admin.create_topics([NewTopic(topic, PARTITIONS, replication_factor=1)])[topic].result()
        self.values = [f"{number}".encode() for number in range(RECORDS)]
        writer = Producer({"bootstrap.servers": self.bootstrap})
        for number, value in enumerate(self.values):
            writer.produce(self.source, value, partition=number % PARTITIONS)
        writer.flush(WAIT_S)

    def transformer(self, kind: type[Transformer]) -> Transformer:
        return kind(self.bootstrap, self.name, self.name, self.source, self.target)

    def committed(self, *, total: int) -> int:
        """Returns how many records the group has consumed: `total`, or the value that no transaction changes."""
        reader = self._reader()
        deadline = time.monotonic() + WAIT_S
        while True:
            partitions = [TopicPartition(self.source, number) for number in range(PARTITIONS)]
            found = sum(max(row.offset, 0) for row in reader.committed(partitions, WAIT_S))
            if found == total or time.monotonic() > deadline:
                reader.close()
                return found
            time.sleep(0.05)

    def transformed(self) -> list[bytes]:
        """Returns all committed records."""
        reader = self._reader()
        last = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(PARTITIONS):
            last.produce(self.target, b"last", partition=number)
        last.flush(WAIT_S)
        reader.assign([TopicPartition(self.target, number, 0) for number in range(PARTITIONS)])
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while values.count(b"last") < PARTITIONS:
            assert time.monotonic() < deadline, values
            message = reader.poll(0.2)
            if message is not None:
                assert message.error() is None, message.error()
                values.append(message.value())
        reader.close()
        return sorted((value for value in values if value != b"last"), key=int)

    def _reader(self) -> Consumer:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": self.name, "isolation.level": "read_committed"}
        return Consumer({**settings, "enable.auto.commit": False})


@pytest.fixture(params=list(TRANSFORMERS))
def kind(request: pytest.FixtureRequest) -> type[Transformer]:
    return TRANSFORMERS[request.param]


def test_every_record_is_transformed_once(cluster: LowtideCluster, kind: type[Transformer]) -> None:
    pipe = Pipe(cluster, f"once-{kind.__name__}")
    worker = pipe.transformer(kind)
    done = turn = 0
    while done < RECORDS:
        values = worker.begin(AT_A_TIME)
        assert values
        turn += 1
        if turn % 3 == 1:
            worker.abort()
        else:
            worker.commit()
            done += len(values)
    worker.close()
    assert pipe.committed(total=RECORDS) == RECORDS
    assert pipe.transformed() == pipe.values


def test_a_fenced_producer_neither_writes_nor_commits_offsets(cluster: LowtideCluster, kind: type[Transformer]) -> None:
    pipe = Pipe(cluster, f"fenced-{kind.__name__}")
    first = pipe.transformer(kind)
    first.begin(AT_A_TIME)
    second = pipe.transformer(kind)
    with pytest.raises(kind.FENCED):
        first.commit()
    assert pipe.committed(total=0) == 0
    first.close()
    done = 0
    while done < RECORDS:
        values = second.begin(AT_A_TIME)
        assert values
        second.commit()
        done += len(values)
    second.close()
    assert pipe.committed(total=RECORDS) == RECORDS
    assert pipe.transformed() == pipe.values
