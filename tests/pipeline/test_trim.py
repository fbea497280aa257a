"""`trim` deletes exactly the durably consumed records; a query survives any failure of trimming."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import PySparkException

from .test_stream_read import run, until  # noqa: F401 a fixture

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def begins(lowtide):
    """`begins(topic)`: the log start of each partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": lowtide.bootstrap, "group.id": "looks"})
    yield lambda topic: [
        consumer.get_watermark_offsets(TopicPartition(topic, one), 30, cached=False)[0] for one in (0, 1)
    ]
    consumer.close()


@pytest.mark.parametrize("mode", ["commit", "eager"])
@pytest.mark.slow
def test_nothing_is_left_when_a_query_of_available_records_ends(run, topic, fill, begins, mode):  # noqa: F811
    """Also not the last batch, which Spark does not commit."""
    fill(topic, {0: 5, 1: 4})
    assert len(run(topic, trim=mode, maxOffsetsPerTrigger=4, **EARLIEST)) == 3
    assert begins(topic) == [5, 4]
    fill(topic, {0: 1})
    assert run(topic, trim=mode, **EARLIEST) == [[(0, 5)]]
    assert begins(topic) == [6, 4]


@pytest.mark.slow
def test_nothing_is_trimmed_unless_it_is_requested(run, topic, fill, begins):  # noqa: F811
    fill(topic, {0: 5, 1: 4})
    run(topic, **EARLIEST)
    assert begins(topic) == [0, 0]


def test_records_of_a_failed_batch_are_kept(run, topic, fill, begins):  # noqa: F811
    fill(topic, {0: 4, 1: 4})
    with pytest.raises(PySparkException, match="this batch fails"):
        run(topic, fails=1, trim="eager", maxOffsetsPerTrigger=4, **EARLIEST)
    assert all(offset <= 2 for offset in begins(topic))
    assert sorted(row for batch in run(topic, trim="eager", maxOffsetsPerTrigger=4, **EARLIEST) for row in batch) == [
        (partition, offset) for partition in (0, 1) for offset in (2, 3)
    ]
    assert begins(topic) == [4, 4]


@pytest.mark.slow
def test_an_idle_query_trims_its_last_batch_if_it_is_eager(spark, lowtide, topic, fill, begins, tmp_path):
    left = {}
    for mode in ("commit", "eager"):
        fill(topic, {0: 3})
        reader = (
            spark.readStream.format("lowtide")
            .option("kafka.bootstrap.servers", lowtide.bootstrap)
            .option("subscribe", topic)
        )
        reader = reader.option("startingOffsets", "earliest").option("trim", mode).option("trimInterval", "10ms")
        seen = []
        writer = reader.load().writeStream.foreachBatch(lambda frame, _, seen=seen: seen.append(frame.count()))
        query = writer.option("checkpointLocation", str(tmp_path / mode)).start()
        try:
            until(lambda seen=seen: sum(seen) == 3, f"{mode}: the records are read")
            if mode == "eager":
                until(lambda: begins(topic)[0] == 6, "the last batch is trimmed")
            left[mode] = begins(topic)[0]
        finally:
            query.stop()
        if mode == "commit":
            from .conftest import delete_to

            delete_to(lowtide.bootstrap, topic, {0: 3})
    assert left == {"commit": 0, "eager": 6}


@pytest.mark.slow
def test_the_last_records_can_be_kept_by_number_and_by_age(run, topic, fill, begins):  # noqa: F811
    fill(topic, {0: 5, 1: 2}, timestamp=1_700_000_000_000)
    run(topic, checkpoint="number", trim="commit", trimLag="3", **EARLIEST)
    assert begins(topic) == [2, 0]
    fill(topic, {0: 1})
    run(topic, checkpoint="age", trim="commit", trimLag="10 minutes", **EARLIEST)
    assert begins(topic) == [5, 2]


@pytest.mark.slow
def test_what_other_groups_have_not_consumed_stays(run, topic, fill, begins, lowtide):  # noqa: F811
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
    from confluent_kafka.admin import AdminClient

    fill(topic, {0: 5, 1: 5})
    group = f"{topic}-reader"
    run(topic, checkpoint="none", trim="commit", trimGroups=group, **EARLIEST)
    assert begins(topic) == [0, 0]
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    committed = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 9)])
    admin.alter_consumer_group_offsets([committed])[group].result(120)
    run(topic, checkpoint="some", trim="commit", trimGroups=group, commitGroupId=f"{topic}-own", **EARLIEST)
    assert begins(topic) == [2, 5]
    asked = ConsumerGroupTopicPartitions(f"{topic}-own")
    answer = admin.list_consumer_group_offsets([asked])[f"{topic}-own"].result(120)
    assert {one.partition: one.offset for one in answer.topic_partitions} == {0: 5, 1: 5}


@pytest.mark.slow
def test_a_re_created_topic_is_neither_trimmed_nor_read(run, topic, fill, begins, lowtide, tmp_path):  # noqa: F811
    from confluent_kafka.admin import AdminClient

    from .conftest import make_topic

    fill(topic, {0: 3, 1: 3})
    run(topic, trim="commit", trimLag="1", **EARLIEST)
    offsets = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])
    assert list(offsets) == [topic, "@topicIds"] or sorted(offsets) == sorted([topic, "@topicIds"])
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    admin.delete_topics([topic])[topic].result(120)
    until(lambda: topic not in admin.list_topics(timeout=30).topics, "the topic is gone")
    make_topic(lowtide.bootstrap, topic, 2)
    fill(topic, {0: 9, 1: 9})
    with pytest.raises(
        PySparkException, match=f"topic {topic} was deleted and created again since the query read it last"
    ):
        run(topic, trim="commit", **EARLIEST)
    assert begins(topic) == [0, 0]
    again = run(topic, trim="commit", failOnDataLoss="false", **EARLIEST)
    assert len(again[0]) == 18


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"trim": "commit"},
            "option trim is 'commit': a delete removes all records below an offset, but this query does not read from",
        ),
        pytest.param(
            {"trim": "always", **EARLIEST},
            "option trim is 'always': it must be off or commit or eager",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"trimLag": "5", **EARLIEST},
            "option trimLag is '5': it has no effect while trim is off",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_impossible_trimming_is_refused_when_the_query_starts(run, topic, options, reason):  # noqa: F811
    with pytest.raises(PySparkException, match=reason):
        run(topic, **options)
