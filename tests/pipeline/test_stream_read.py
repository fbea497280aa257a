"""`spark.readStream.format("lowtide")`: exactly the records once, for any trigger, limits, and number of restarts."""

from __future__ import annotations

import json
import time

import pytest
from pyspark.errors import PySparkException

from .conftest import make_topic, run_to_its_end


@pytest.fixture
def run(spark, lowtide, tmp_path):
    """`run(topic, ...)` reads all available records with a lasting checkpoint; returns the rows of each batch."""

    def run(topic: str, fails: int | None = None, checkpoint: str = "checkpoint", **options: object):
        batches = []

        def each(frame, batch_id):
            rows = sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())
            if batch_id == fails:
                raise RuntimeError("this batch fails")
            batches.append(rows)

        reader = (
            spark.readStream.format("lowtide")
            .option("kafka.bootstrap.servers", lowtide.bootstrap)
            .option("subscribe", topic)
        )
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        writer = reader.load().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / checkpoint))
        run_to_its_end(writer.trigger(availableNow=True))
        return batches

    return run


def until(condition, what: str, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.05)


def test_available_now_reads_available_records_in_limited_batches_and_continues_from_its_checkpoint(
    run, topic, fill, tmp_path
):
    fill(topic, {0: 5, 1: 5})
    batches = run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=4)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(row for batch in batches for row in batch) == [
        (partition, offset) for partition in (0, 1) for offset in range(5)
    ]
    checkpoint = (tmp_path / "checkpoint/offsets/2").read_text().splitlines()[-1]
    assert json.loads(checkpoint) == {topic: {"0": 5, "1": 5}}
    assert run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=4) == []
    fill(topic, {1: 1})
    assert run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=4) == [[(1, 5)]]


@pytest.mark.slow
def test_a_batch_that_failed_is_repeated_with_the_same_records(run, topic, fill):
    fill(topic, {0: 3, 1: 3})
    with pytest.raises(PySparkException, match="this batch fails"):
        run(topic, fails=0, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    fill(topic, {0: 3})
    batches = run(topic, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    assert batches[0] == [(0, 0), (1, 0)]
    assert sorted(row for batch in batches for row in batch) == [(0, offset) for offset in range(6)] + [
        (1, offset) for offset in range(3)
    ]


@pytest.mark.slow
def test_a_stream_from_the_latest_offsets_loses_nothing_when_its_first_batch_is_repeated(
    spark, lowtide, topic, fill, tmp_path
):
    """Spark requests the start again, and by then the topic has more records: those in between would be skipped."""
    fill(topic, {0: 10})
    seen = []

    def start(fails: bool):
        def each(frame, batch_id):
            rows = [row.offset for row in frame.select("offset").collect()]
            if fails and rows:
                raise RuntimeError("this batch fails")
            seen.extend(rows)

        reader = (
            spark.readStream.format("lowtide")
            .option("kafka.bootstrap.servers", lowtide.bootstrap)
            .option("subscribe", topic)
        )
        reader = reader.option("minOffsetsPerTrigger", 1)
        return (
            reader.load().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path / "latest")).start()
        )

    query = start(fails=True)
    until(
        lambda: (tmp_path / "latest/offsets/0").exists() or query.exception() is not None, "the first batch is planned"
    )
    fill(topic, {0: 5})
    until(lambda: query.exception() is not None, "the batch fails")
    assert "this batch fails" in str(query.exception())
    fill(topic, {0: 5})
    query = start(fails=False)
    try:
        until(lambda: len(seen) >= 10 or query.exception() is not None, "later records are read")
    finally:
        query.stop()
    assert sorted(seen) == list(range(10, 20))


@pytest.mark.slow
def test_partitions_that_are_added_are_read_from_their_start(run, lowtide, lowtide_topic, fill):
    from confluent_kafka.admin import AdminClient, NewPartitions

    make_topic(lowtide.bootstrap, lowtide_topic, 1)
    fill(lowtide_topic, {0: 2})
    assert run(lowtide_topic, startingOffsets="earliest") == [[(0, 0), (0, 1)]]
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    admin.create_partitions([NewPartitions(lowtide_topic, 2)])[lowtide_topic].result(120)
    fill(lowtide_topic, {1: 2})
    assert run(lowtide_topic, startingOffsets="earliest") == [[(1, 0), (1, 1)]]


@pytest.mark.slow
def test_deleted_records_end_the_query_before_it_reads_or_are_skipped(run, topic, fill, lowtide):
    from .conftest import delete_to

    fill(topic, {0: 4, 1: 4})
    assert len(run(topic, startingOffsets="earliest")[0]) == 8
    fill(topic, {0: 4})
    delete_to(lowtide.bootstrap, topic, {0: 6})
    with pytest.raises(
        PySparkException, match=f"records of {topic}-0 from offset 4 to 5 were deleted before they were read"
    ):
        run(topic, startingOffsets="earliest")
    assert run(topic, startingOffsets="earliest", failOnDataLoss="false") == [[(0, 6), (0, 7)]]


@pytest.mark.slow
def test_a_query_waits_until_there_is_enough_or_it_is_late(spark, lowtide, topic, fill, tmp_path):
    seen = []
    reader = (
        spark.readStream.format("lowtide")
        .option("kafka.bootstrap.servers", lowtide.bootstrap)
        .option("subscribe", topic)
    )
    reader = (
        reader.option("startingOffsets", "earliest").option("minOffsetsPerTrigger", 5).option("maxTriggerDelay", "1h")
    )
    fill(topic, {0: 1})
    query = (
        reader.load()
        .writeStream.foreachBatch(lambda frame, _: seen.append(frame.count()))
        .option("checkpointLocation", str(tmp_path / "waits"))
        .start()
    )
    try:
        until(lambda: seen == [1], "the first batch never waits")
        fill(topic, {0: 3})
        fill(topic, {0: 2})
        until(lambda: len(seen) >= 2, "there is enough")
        assert seen == [1, 5]
    finally:
        query.stop()
