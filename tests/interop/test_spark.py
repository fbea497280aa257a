"""The data source and the listener on Apache Kafka and on Lowtide: the same columns, and the same deletes.

With the jars of Spark's Kafka connector in `SPARK_KAFKA_JARS` (a list for `spark.jars`) the listener trims its records
too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ..pipeline.local_spark import local_spark  # noqa: TID252 tests are no package that could be named
from .kafka import Kafka
from .lowtide_process import LowtideProcess

pytestmark = pytest.mark.interop

CONNECTOR = os.environ.get("SPARK_KAFKA_JARS", "")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with local_spark(
        tmp_path_factory.mktemp("warehouse"), **({"spark.jars": CONNECTOR} if CONNECTOR else {})
    ) as session:
        yield session


@pytest.fixture(params=["kafka", "lowtide"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A broker with a topic `t` of two partitions, and a record of each kind."""
    if request.param == "lowtide":
        with LowtideProcess(tmp_path / "lowtide") as broker:
            fill(broker.bootstrap)
            yield broker.bootstrap
        return
    kafka: Kafka = request.getfixturevalue("kafka")
    kafka.start()
    fill(kafka.bootstrap)
    yield kafka.bootstrap


def fill(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 2)])["t"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for index in range(20):
        producer.produce(
            "t", value=f"v{index}", key=None if index % 3 else "k", partition=index % 2, headers=[("h", b"1")]
        )
    assert producer.flush(30) == 0


def begins(bootstrap: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition("t", one), 30, cached=False)[0] for one in (0, 1)]
    finally:
        consumer.close()


def consume(
    spark,
    bootstrap: str,
    checkpoint: Path,
    format: str = "lowtide",  # noqa: A002
    name: str = "q",
    **options: str,
) -> list[int]:
    """Returns the number of rows of each batch."""
    rows: list[int] = []
    reader = spark.readStream.format(format).option("kafka.bootstrap.servers", bootstrap).option("subscribe", "t")
    for key, value in {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "8", **options}.items():
        reader = reader.option(key, value)
    writer = reader.load().writeStream.foreachBatch(lambda frame, _: rows.append(frame.count())).queryName(name)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(180)
    return rows


def test_a_topic_is_read(spark, bootstrap):
    frame = (
        spark.read.format("lowtide")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "t")
        .option("includeHeaders", "true")
    )
    rows = frame.load().orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset) for row in rows] == [
        (partition, offset) for partition in (0, 1) for offset in range(10)
    ]
    assert [bytes(row.value) for row in rows[:3]] == [b"v0", b"v2", b"v4"]
    assert [row.key and bytes(row.key) for row in rows[:4]] == [b"k", None, None, b"k"]
    assert [(header.key, bytes(header.value)) for header in rows[0].headers] == [("h", b"1")]


def test_a_stream_trims_a_topic(spark, bootstrap, tmp_path):
    assert consume(spark, bootstrap, tmp_path / "c", trim="eager") == [8, 8, 4]
    assert begins(bootstrap) == [10, 10]
    assert consume(spark, bootstrap, tmp_path / "c", trim="eager") == []


@pytest.mark.parametrize("format", ["lowtide", "kafka"])
def test_a_listener_trims_a_topic(spark, bootstrap, tmp_path, format):  # noqa: A002
    """The last batch too; and the rest of a run without a listener."""
    from lowtide.pipeline import TrimListener

    if format == "kafka" and not CONNECTOR:
        pytest.skip("SPARK_KAFKA_JARS doesn't name the jars of Spark's Kafka connector")
    assert consume(spark, bootstrap, tmp_path / "c", format) == [8, 8, 4]
    assert begins(bootstrap) == [0, 0]
    listener = TrimListener(bootstrap, {"q": ["t"]}, checkpoints={"q": str(tmp_path / "c")})
    spark.streams.addListener(listener)
    try:
        assert consume(spark, bootstrap, tmp_path / "c", format) == []
        until = time.monotonic() + 60
        while begins(bootstrap) != [10, 10]:
            assert time.monotonic() < until, begins(bootstrap)
            time.sleep(0.2)
    finally:
        spark.streams.removeListener(listener)


def test_a_job_logs_in_over_tls(spark, secured, tmp_path, lowtide_topic):
    """Driver, workers and their deletes use the same options."""
    options = {f"kafka.{key}": value for key, value in secured.settings("SASL_SSL", "SCRAM-SHA-512").items()}
    admin = AdminClient({"bootstrap.servers": secured.node.bootstrap})
    admin.create_topics([NewTopic(lowtide_topic, 2)])[lowtide_topic].result(30)
    rows = spark.range(500).selectExpr("cast(id as string) as key", "repeat('x', 1000) as value")
    rows.write.format("lowtide").mode("append").options(**options).option("topic", lowtide_topic).save()
    counts: list[int] = []
    reader = (
        spark.readStream.format("lowtide")
        .options(**options)
        .option("subscribe", lowtide_topic)
        .option("startingOffsets", "earliest")
    )
    writer = (
        reader.option("trim", "eager").load().writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
    )
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    query.awaitTermination(180)
    assert sum(counts) == 500
    again = spark.read.format("lowtide").options(**options).option("subscribe", lowtide_topic).load()
    assert again.count() == 0
