"""`write` and `writeStream`: rows reach the partitions that Spark's Kafka sink chooses, each once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lowtide.pipeline.partitioner import partitions_of_keys
from lowtide.protocol.compression import Compression

from .broker_process import BrokerProcess
from .conftest import make_topic
from .topic_contents import batches, records

LIMIT_S = 600.0
TRIED = (Compression.NONE, Compression.ZSTD)
"""The cases of `make test`."""


def save(frame, bootstrap: str, **options: object) -> None:
    writer = frame.write.format("lowtide").mode("append").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), str(value))
    writer.save()


def partition_of(key: bytes, count: int) -> int:
    return int(partitions_of_keys(np.array([0, len(key)], np.int32), np.frombuffer(key, np.uint8), count)[0])


def test_rows_become_records(spark, lowtide, topic):
    """Text and bytes, nulls, headers; columns that the sink does not know are ignored."""
    frame = spark.sql(
        """
        select * from values
          ('a', cast('1' as binary),
           array(named_struct('key', 'h', 'value', cast('x' as binary)), named_struct('key', 'i', 'value', null)), 1),
          ('b', cast('2' as binary), null, 2),
          ('c', null, array(), 3),
          (null, cast('4' as binary), null, 4)
        as rows(key, value, headers, passed_over)
        """
    )
    save(frame, lowtide.bootstrap, topic=topic)
    found = {record.value or record.key: record for record in records(lowtide.bootstrap, topic)}
    assert {value: record.key for value, record in found.items()} == {b"1": b"a", b"2": b"b", b"c": b"c", b"4": None}
    assert found[b"1"].headers == [("h", b"x"), ("i", None)]
    assert not found[b"2"].headers
    assert {record.key: record.partition for record in found.values() if record.key} == {
        key: partition_of(key, 2) for key in (b"a", b"b", b"c")
    }


def test_a_column_selects_the_topic_and_an_option_overrides_it(spark, lowtide, lowtide_topic):
    names = [f"{lowtide_topic}-{number}" for number in range(3)]
    for name in names:
        make_topic(lowtide.bootstrap, name, 2)
    frame = spark.range(300).selectExpr("cast(id as string) as value", f"concat('{lowtide_topic}-', id % 2) as topic")
    save(frame, lowtide.bootstrap)
    assert {int(record.value) % 2 for record in records(lowtide.bootstrap, names[0])} == {0}
    assert len(records(lowtide.bootstrap, names[1])) == 150
    save(frame, lowtide.bootstrap, topic=names[2])
    assert sorted(int(record.value) for record in records(lowtide.bootstrap, names[2])) == list(range(300))


def test_a_column_selects_the_partition_and_null_leaves_it_to_the_key(spark, lowtide, topic):
    frame = spark.range(100).selectExpr(
        "concat('k', id) as key",
        "cast(id as string) as value",
        "if(id % 2 = 0, cast(id / 2 % 2 as int), null) as partition",
    )
    save(frame, lowtide.bootstrap, topic=topic)
    for record in records(lowtide.bootstrap, topic):
        number = int(record.value)
        assert record.partition == (partition_of(record.key, 2) if number % 2 else number // 2 % 2)


def test_keys_keep_their_order_and_rows_without_a_key_reach_all_partitions(spark, lowtide, topic):
    keyed = spark.range(5000, numPartitions=1).selectExpr("concat('k', id % 7) as key", "cast(id as string) as value")
    save(keyed, lowtide.bootstrap, topic=topic)
    last: dict[bytes, int] = {}
    for record in records(lowtide.bootstrap, topic):
        assert last.get(record.key, -1) < int(record.value)
        last[record.key] = int(record.value)
    make_topic(lowtide.bootstrap, f"{topic}-free", 3)
    save(
        spark.range(3000).selectExpr("repeat('x', 1000) as value"),
        lowtide.bootstrap,
        topic=f"{topic}-free",
        kafka__batch__size=20_000,
    )
    found = Counter(record.partition for record in records(lowtide.bootstrap, f"{topic}-free"))
    assert sorted(found) == [0, 1, 2]
    assert min(found.values()) > 500
    assert max(header.record_count for header in batches(lowtide.data_directory, f"{topic}-free")) >= 15, (
        "rows fill batches"
    )


UNWRITABLE = [
    ("id", {"topic": "t"}, "Required attribute 'value' not found: the columns are id"),
    ("cast(id as string) as value", {}, "topic option required when no 'topic' attribute is present"),
    ("id as value", {"topic": "t"}, "value must be string or binary, but is bigint: cast it"),
    ("'v' as value, id as partition", {"topic": "t"}, "partition must be int, but is bigint"),
    (
        "'v' as value, array('h') as headers",
        {"topic": "t"},
        "headers must be array<struct<key:string,value:binary>>",
    ),
    (
        "'v' as value",
        {"topic": "t", "kafka.acks": "1"},
        "kafka.acks is '1': this sink always waits for all in-sync replicas",
    ),
    (
        "'v' as value",
        {"topic": "t", "kafka.compression.type": "lzma"},
        "kafka.compression.type is 'lzma': it must be one of none, gzip",
    ),
    (
        "'v' as value",
        {"topic": "t", "kafka.value.serializer": "x"},
        "kafka.value.serializer must not be set: the column value is written",
    ),
    (
        "'v' as value",
        {"topic": "t", "topics": "u"},
        "option topics is 'u': there is no such option; is topic meant?",
    ),
    ("cast(null as string) as topic, 'v' as value", {}, "null topic present in the data"),
    (
        "'v' as value, 7 as partition",
        {"topic": "TOPIC"},
        r"partition 7 of row 0: topic \S+ has the partitions 0 to 1",
    ),
]
"""Columns, options, and what the error says."""


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [pytest.param(*row, marks=() if place % 5 == 0 else pytest.mark.slow) for place, row in enumerate(UNWRITABLE)],
)
def test_what_cannot_be_written_is_named(spark, lowtide, topic, columns, options, message):
    frame = spark.sql(f"select {columns} from range(1)")
    options = {key: topic if value == "TOPIC" else value for key, value in options.items()}
    with pytest.raises(Exception, match=message):
        save(frame, lowtide.bootstrap, **options)


@pytest.mark.parametrize(
    "codec",
    [
        pytest.param(codec, id=codec.name.lower(), marks=() if codec in TRIED else pytest.mark.slow)
        for codec in Compression
    ],
)
def test_batches_are_compressed_by_the_option(spark, lowtide, topic, codec):
    frame = spark.range(500).selectExpr("repeat('sea ', 100) as value")
    save(frame, lowtide.bootstrap, topic=topic, kafka__compression__type=codec.name.lower())
    assert {header.compression for header in batches(lowtide.data_directory, topic)} == {codec}
    assert {record.value for record in records(lowtide.bootstrap, topic)} == {b"sea " * 100}


def test_a_row_larger_than_a_batch_is_sent_alone_and_one_above_the_topic_s_limit_is_named(spark, lowtide, topic):
    frame = spark.sql("select repeat('x', if(id = 3, 900000, 10)) as value from range(0, 10, 1, 1)")
    save(frame, lowtide.bootstrap, topic=topic)
    assert sorted(len(record.value) for record in records(lowtide.bootstrap, topic)) == [10] * 9 + [900_000]
    with pytest.raises(
        Exception, match=rf"{topic}-[01] refused a record \(20000\d\d bytes\) with MESSAGE_TOO_LARGE.*max.message.bytes"
    ):
        save(spark.sql("select repeat('x', 2000000) as value"), lowtide.bootstrap, topic=topic)


def test_a_worker_keeps_its_producer_from_task_to_task(spark, lowtide, topic):
    """A broker remembers every producer for a day; a stream of small micro-batches would make it remember thousands."""
    for _ in range(4):
        save(spark.range(20, numPartitions=2).selectExpr("cast(id as string) as value"), lowtide.bootstrap, topic=topic)
    headers = list(batches(lowtide.data_directory, topic))
    assert len(headers) >= 8
    assert len({header.producer_id for header in headers}) <= 4
    assert all(header.producer_id >= 0 for header in headers)


@pytest.mark.slow
def test_a_stream_writes_each_micro_batch(spark, lowtide, topic, tmp_path: Path):
    source = tmp_path / "in"
    source.mkdir()

    def run() -> None:
        lines = spark.readStream.format("text").load(str(source))
        writer = (
            lines.writeStream.format("lowtide")
            .option("kafka.bootstrap.servers", lowtide.bootstrap)
            .option("topic", topic)
        )
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(int(LIMIT_S))
        assert query.exception() is None

    for part in range(2):
        (source / f"{part}.txt").write_text("".join(f"{part}-{number}\n" for number in range(50)))
        run()
    found = sorted(record.value or b"" for record in records(lowtide.bootstrap, topic))
    assert found == sorted(b"%d-%d" % (part, number) for part in range(2) for number in range(50))


@pytest.mark.slow
def test_a_broker_that_is_killed_while_a_job_writes_receives_nothing_twice(spark, tmp_path: Path):
    with BrokerProcess(tmp_path / "broker") as broker:
        make_topic(broker.address, "numbers", 2)
        frame = spark.range(40_000, numPartitions=2).selectExpr("concat(id, ' ', repeat('x', 1000)) as value")
        failed: list[Exception] = []

        def kill_twice() -> None:
            try:
                for written in (3_000_000, 20_000_000):
                    deadline = time.monotonic() + LIMIT_S
                    while sum(path.stat().st_size for path in broker.directory.glob("numbers-*/*.log")) < written:
                        assert time.monotonic() < deadline
                        time.sleep(0.005)
                    broker.kill()
                    broker.start()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=kill_twice)
        thread.start()
        save(frame, broker.address, topic="numbers", kafka__buffer__memory=1_000_000, kafka__batch__size=16_000)
        thread.join(LIMIT_S)
        assert failed == []
        found = Counter(int((record.value or b"").split()[0]) for record in records(broker.address, "numbers"))
        assert found == Counter(range(40_000))
