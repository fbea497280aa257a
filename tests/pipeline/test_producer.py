"""The blocking producer writes records once and in order, under any failure of connections and of the broker."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from lowtide.pipeline.partition_batches import ProduceError
from lowtide.pipeline.producer import Producer
from lowtide.pipeline.producer_settings import ProducerSettings
from lowtide.protocol import types
from lowtide.protocol.batch_building import build_batch

from .broker_process import BrokerProcess
from .cutting_proxy import CuttingProxy

LIMIT_S = 120.0
PARTITIONS = 2
NOW_MS = round(time.time() * 1000)
"""No record is so old that retention deletes it during a test."""


def producer(address: str, **settings: str) -> Producer:
    keys = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer(ProducerSettings.of({"bootstrap.servers": address} | keys))


def create_topic(address: str, topic: str, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1, config=config or {})])[
        topic
    ].result(LIMIT_S)


def write(to: Producer, topic: str, first: int, last: int, *, records: int = 20, filler: bytes = b"") -> None:
    """Batches of `records` numbers each from `first` on, to both partitions in turn."""
    to.learn_topic(topic)
    for number in range(first, last, records):
        rows = [(NOW_MS, None, b"%d %b" % (value, filler), ()) for value in range(number, number + records)]
        to.add(types.TopicPartition(topic, number // records % PARTITIONS), bytearray(build_batch(rows)), records)


def read(address: str, topic: str) -> list[list[int]]:
    """Returns the numbers in each partition, in order."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False, "auto.offset.reset": "error"}
    )
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(place, timeout=LIMIT_S, cached=False)[1] for place in places]
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found: list[list[int]] = [[] for _ in places]
        deadline = time.monotonic() + LIMIT_S
        while sum(map(len, found)) < sum(ends):
            assert time.monotonic() < deadline
            for message in consumer.consume(1000, timeout=1.0):
                assert message.error() is None
                found[message.partition() or 0].append(int((message.value() or b"").split()[0]))
        return found
    finally:
        consumer.close()


def expected(last: int, *, records: int = 20) -> list[list[int]]:
    return [
        [value for value in range(last) if value // records % PARTITIONS == partition]
        for partition in range(PARTITIONS)
    ]


def test_everything_is_written_once_and_in_order(lowtide, lowtide_topic):
    create_topic(lowtide.bootstrap, lowtide_topic)
    writing = producer(lowtide.bootstrap, buffer_memory="4096")
    write(writing, lowtide_topic, 0, 4000)
    writing.flush()
    assert writing.acknowledged_records == 4000
    write(writing, lowtide_topic, 4000, 5000)
    writing.flush()
    writing.close()
    assert read(lowtide.bootstrap, lowtide_topic) == expected(5000)


@pytest.mark.parametrize("seed", [1, 2])
def test_connections_that_end_with_answers_outstanding_duplicate_nothing(tmp_path: Path, seed: int):
    with (
        CuttingProxy(cuts=12, cut_after_bytes=60_000, seed=seed) as proxy,
        BrokerProcess(tmp_path / "broker", advertised_port=proxy.port) as broker,
    ):
        proxy.target_port = broker.port
        create_topic(broker.address, "numbers")
        writing = producer(broker.address, retry_backoff_ms="5", retry_backoff_max_ms="20")
        write(writing, "numbers", 0, 20_000, filler=b"x" * 100)
        writing.flush()
        writing.close()
        assert proxy.cuts_left == 0
        assert writing.retries >= 12
        assert read(broker.address, "numbers") == expected(20_000)


@pytest.mark.parametrize("ending", ["kill", pytest.param("terminate", marks=pytest.mark.slow)])
def test_a_broker_that_ends_while_it_is_written_to_has_everything_once(tmp_path: Path, ending: str):
    """It returns with the producer's state from its log, or after a clean stop with only the last batch."""
    with BrokerProcess(tmp_path / "broker", "log.retention.ms=-1") as broker:
        create_topic(broker.address, "numbers")
        writing = producer(broker.address)
        failed: list[Exception] = []

        def run() -> None:
            try:
                write(writing, "numbers", 0, 60_000, filler=b"x" * 500)
                writing.flush()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        for after in (10_000, 30_000):
            deadline = time.monotonic() + LIMIT_S
            while writing.acknowledged_records < after and thread.is_alive():
                assert time.monotonic() < deadline
                time.sleep(0.001)
            getattr(broker, ending)()
            broker.start()
        thread.join(2 * LIMIT_S)
        assert not thread.is_alive()
        assert failed == []
        assert writing.retries > 0
        writing.close()
        assert read(broker.address, "numbers") == expected(60_000)


def test_batches_are_split_for_a_topic_with_a_smaller_limit(lowtide, lowtide_topic):
    create_topic(lowtide.bootstrap, lowtide_topic, {"max.message.bytes": "3000"})
    writing = producer(lowtide.bootstrap, retry_backoff_ms="1")
    write(writing, lowtide_topic, 0, 400, filler=b"x" * 900)
    writing.flush()
    writing.close()
    assert read(lowtide.bootstrap, lowtide_topic) == expected(400)


def test_a_record_that_the_topic_never_accepts_is_named(lowtide, lowtide_topic):
    create_topic(lowtide.bootstrap, lowtide_topic, {"max.message.bytes": "3000"})
    writing = producer(lowtide.bootstrap, retry_backoff_ms="1")
    with pytest.raises(
        ProduceError, match=rf"{lowtide_topic}-0 refused a record \(50\d\d bytes\) with MESSAGE_TOO_LARGE"
    ):
        write(writing, lowtide_topic, 0, 20, filler=b"x" * 4995)
        writing.flush()
    writing.close()


def test_a_missing_topic_is_named(tmp_path: Path):
    with BrokerProcess(tmp_path / "broker", "auto.create.topics.enable=false") as broker:
        writing = producer(broker.address, max_block_ms="3000")
        with pytest.raises(
            ProduceError,
            match=r"topic nowhere does not exist after kafka\.max\.block\.ms=3000: UNKNOWN_TOPIC_OR_PARTITION",
        ):
            writing.learn_topic("nowhere")
        writing.close()


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path):
    broker = BrokerProcess(tmp_path / "broker")
    writing = producer(broker.address, max_block_ms="300")
    with pytest.raises(ProduceError, match=f"no broker answers at {broker.address}"):
        writing.learn_topic("numbers")


def test_a_broker_that_stays_down_ends_with_the_last_attempt(tmp_path: Path):
    with BrokerProcess(tmp_path / "broker") as broker:
        create_topic(broker.address, "numbers")
        writing = producer(broker.address, delivery_timeout_ms="1500", request_timeout_ms="500")
        write(writing, "numbers", 0, 20)
        writing.flush()
        broker.kill()
        with pytest.raises(
            ProduceError, match=r"numbers-1 has not acknowledged 20 records within kafka\.delivery\.timeout\.ms=1500"
        ):
            write(writing, "numbers", 20, 40)
            writing.flush()
        writing.close()


def test_leaders_that_move_are_followed(lowtide_cluster, lowtide_topic):
    """A broker stops and returns during the writes: others lead its partitions meanwhile."""
    admin = AdminClient({"bootstrap.servers": lowtide_cluster.bootstrap})
    new = NewTopic(lowtide_topic, num_partitions=PARTITIONS, replication_factor=3, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[lowtide_topic].result(LIMIT_S)
    writing = producer(lowtide_cluster.bootstrap)
    last = 0
    for broker in lowtide_cluster.broker_ids:
        write(writing, lowtide_topic, last, last + 2000)
        lowtide_cluster.stop_broker(broker)
        write(writing, lowtide_topic, last + 2000, last + 4000)
        writing.flush()
        lowtide_cluster.start_broker(broker)
        last += 4000
    writing.close()
    assert read(lowtide_cluster.bootstrap, lowtide_topic) == expected(last)
