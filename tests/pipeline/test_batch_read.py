"""`spark.read.format("lowtide")` gives Kafka's columns, exactly the requested records, and precise refusals."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from .conftest import delete_to, make_topic, offsets


def test_every_column_of_a_record(read, topic, producer):
    producer.produce(
        topic, value=b"\x00\xff", key="k", partition=1, timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)]
    )
    producer.produce(topic, value=None, key=None, partition=1, timestamp=1_700_000_000_124)
    assert producer.flush(120) == 0
    first, second = read(subscribe=topic, includeHeaders="true").orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset, first.timestampType) == (
        b"k",
        b"\x00\xff",
        topic,
        1,
        0,
        0,
    )
    assert first.timestamp.astimezone(dt.UTC) == dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
    assert [(header.key, header.value and bytes(header.value)) for header in first.headers] == [
        ("a", b"1"),
        ("a", None),
    ]
    assert (second.key, second.value, second.offset, second.headers) == (None, None, 1, None)


def test_the_schema_is_that_of_sparks_kafka_source(read, topic):
    plain = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in read(subscribe=topic).schema) == plain
    headers = read(subscribe=topic, includeHeaders="true").schema["headers"]
    assert headers.dataType.simpleString() == "array<struct<key:string,value:binary>>"


def test_a_batch_reads_from_the_earliest_to_the_latest(read, topic, fill):
    assert read(subscribe=topic).count() == 0
    fill(topic, {0: 3, 1: 2})
    assert offsets(read(subscribe=topic)) == {0: [0, 1, 2], 1: [0, 1]}


def test_what_is_read_can_be_bounded_by_offsets_and_special_places(read, topic, fill):
    fill(topic, {0: 5, 1: 5})
    start, end = {topic: {"0": 1, "1": -2}}, {topic: {"0": 3, "1": -1}}
    assert offsets(read(subscribe=topic, startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))) == {
        0: [1, 2],
        1: [0, 1, 2, 3, 4],
    }


def test_what_is_read_can_be_bounded_by_time(read, lowtide, lowtide_topic, fill):
    make_topic(lowtide.bootstrap, lowtide_topic, 1, **{"retention.ms": "-1"})
    for timestamp in (1000, 2000, 3000):
        fill(lowtide_topic, {0: 2}, timestamp=timestamp)
    assert offsets(read(subscribe=lowtide_topic, startingTimestamp=1500, endingTimestamp=3000)) == {0: [2, 3]}
    by_partition = json.dumps({lowtide_topic: {"0": 3000}})
    assert offsets(
        read(subscribe=lowtide_topic, startingOffsetsByTimestamp=by_partition, startingOffsets="earliest")
    ) == {0: [4, 5]}
    assert offsets(read(subscribe=lowtide_topic, endingTimestamp=9000)) == {0: [0, 1, 2, 3, 4, 5]}
    with pytest.raises(
        PySparkException, match="has no record at or after 9000 .* startingOffsetsByTimestampStrategy=latest"
    ):
        read(subscribe=lowtide_topic, startingTimestamp=9000).count()
    assert (
        read(subscribe=lowtide_topic, startingTimestamp=9000, startingOffsetsByTimestampStrategy="latest").count() == 0
    )


def test_partitions_and_patterns_select(read, lowtide, lowtide_topic, fill):
    for suffix in ("a", "b", "ab"):
        make_topic(lowtide.bootstrap, f"{lowtide_topic}.{suffix}", 2)
        fill(f"{lowtide_topic}.{suffix}", {0: 1, 1: 2})
    assert offsets(read(assign=json.dumps({f"{lowtide_topic}.a": [1]}))) == {1: [0, 1]}
    found = read(subscribePattern=f"{lowtide_topic}[.][ab]").select("topic").distinct().collect()
    assert {row.topic for row in found} == {f"{lowtide_topic}.a", f"{lowtide_topic}.b"}
    with pytest.raises(PySparkException, match=r"option assign names .*\.a-7, but .*\.a has 2 partitions"):
        read(assign=json.dumps({f"{lowtide_topic}.a": [7]})).count()


def test_a_large_partition_is_read_by_several_tasks(read, topic, fill):
    fill(topic, {0: 100, 1: 4})
    frame = read(subscribe=topic, minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert offsets(frame) == {0: list(range(100)), 1: [0, 1, 2, 3]}
    assert read(subscribe=topic, maxRecordsPerPartition=25).rdd.getNumPartitions() == 5


def test_large_and_compressed_batches_are_read_whole(read, topic, lowtide):
    """Larger than one fetch, and with several column batches in one fetch."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": lowtide.bootstrap, "compression.type": "lz4", "linger.ms": 50})
    for index in range(3000):
        producer.produce(topic, value=index.to_bytes(4, "big") * 250, partition=0)
    assert producer.flush(120) == 0
    rows = (
        read(subscribe=topic, kafka__max__partition__fetch__bytes=2000)
        .selectExpr("count(*)", "sum(length(value))", "max(offset)")
        .collect()
    )
    assert tuple(rows[0]) == (3000, 3_000_000, 2999)


def test_records_that_were_deleted_are_missing_and_no_loss_for_a_batch_from_the_earliest(read, topic, fill, lowtide):
    fill(topic, {0: 10, 1: 10})
    delete_to(lowtide.bootstrap, topic, {0: 6, 1: 10})
    assert offsets(read(subscribe=topic)) == {0: [6, 7, 8, 9]}


@pytest.mark.slow
def test_requested_deleted_records_end_the_task_or_are_skipped(read, topic, fill, lowtide):
    fill(topic, {0: 10, 1: 1})
    delete_to(lowtide.bootstrap, topic, {0: 6})
    asked = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 2, "1": 0}})}
    with pytest.raises(
        PySparkException, match=f"records of {topic}-0 from offset 2 to 5 were deleted before they were read"
    ):
        read(**asked).count()
    assert offsets(read(**asked, failOnDataLoss="false")) == {0: [6, 7, 8, 9], 1: [0]}
    beyond = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 20, "1": 0}})}
    with pytest.raises(PySparkException, match=f"{topic}-0 was to be read from offset 20 on, but ends at 10"):
        read(**beyond).count()
    assert offsets(read(**beyond, failOnDataLoss="false")) == {1: [0]}


def test_records_of_aborted_transactions_are_left_out_unless_they_are_requested(read, lowtide, lowtide_topic):
    from confluent_kafka import Producer

    make_topic(lowtide.bootstrap, lowtide_topic, 1)
    producer = Producer({"bootstrap.servers": lowtide.bootstrap, "transactional.id": lowtide_topic})
    producer.init_transactions(30)
    for value, end in (
        ("kept", producer.commit_transaction),
        ("aborted", producer.abort_transaction),
        ("last", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(lowtide_topic, value=value)
        producer.flush(120)
        end(30)
    assert [bytes(row.value) for row in read(subscribe=lowtide_topic).orderBy("offset").collect()] == [b"kept", b"last"]
    frame = read(subscribe=lowtide_topic, kafka__isolation__level="read_uncommitted")
    assert [bytes(row.value) for row in frame.orderBy("offset").collect()] == [b"kept", b"aborted", b"last"]


def test_a_topic_that_does_not_exist_is_named(read):
    with pytest.raises(PySparkException, match="topic no-such-topic does not exist"):
        read(subscribe="no-such-topic").count()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"subscribe": "t", "endingOffset": "latest"},
            "option endingoffset is 'latest': there is no such option; is endingOffsets meant",
        ),
        (
            {"subscribe": "t", "startingOffsets": "latest"},
            "option startingOffsets is 'latest': a batch query must not begin at the latest offset",
        ),
        (
            {"subscribe": "t", "maxOffsetsPerTrigger": "5"},
            "option maxOffsetsPerTrigger is '5': it works in streams only",
        ),
        ({"subscribe": "t", "includeHeaders": "maybe"}, "option includeHeaders is 'maybe': it must be true or false"),
        ({}, "one of subscribe, subscribePattern and assign must be given"),
    ],
)
def test_an_invalid_option_is_reported_with_its_name_its_value_and_the_reason(read, options, reason):
    with pytest.raises(PySparkException, match=reason):
        read(**options).count()


@pytest.mark.slow
def test_a_format_that_was_found_may_be_registered_too(spark, read, topic, fill):
    """Programs for environments that do not find it do so, and must run here too."""
    from lowtide.pipeline import register

    fill(topic, {0: 1})
    assert read(subscribe=topic).count() == 1
    register(spark)
    assert read(subscribe=topic).count() == 1


def test_every_python_that_spark_starts_connects_early(spark, read, topic):
    """Also those of a format that Spark has found itself: it takes their program from another variable."""
    assert read(subscribe=topic).count() == 0
    started = [line for line in children(spark.sparkContext._gateway.proc.pid) if "-m pyspark." in line]
    assert any("lookup_data_sources" in line for line in started), started
    assert all("early_python.py -m" in line for line in started), started


def children(parent: int) -> list[str]:
    """Returns the command lines of a process's children."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.append((path / "cmdline").read_text().replace("\0", " "))
    return found
