"""`union_of`: all of a topic as one data frame, the old part from the table, the new part from the topic."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from lowtide.pipeline import union_of
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.table.progress import ProgressError

from .conftest import delete_to, make_topic
from .table_jobs import TABLE, LocalJobs


@pytest.fixture
def jobs(lowtide, topic, tmp_path):
    made = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    yield made
    made.close()


def union(jobs: LocalJobs, spark, **more):
    place = {
        "catalog": f"sqlite:///{jobs.folder}/catalog.db",
        "catalog_properties": [f"warehouse=file://{jobs.folder}/warehouse"],
    }
    return union_of(jobs.topic, TABLE, spark, options={"kafka.bootstrap.servers": jobs.bootstrap}, **place, **more)


def send(jobs: LocalJobs, partition: int, *values: object) -> None:
    producer = Producer({"bootstrap.servers": jobs.bootstrap})
    for value in values:
        producer.produce(jobs.topic, value if isinstance(value, bytes) else json.dumps(value), "k", partition=partition)
    assert producer.flush(120) == 0


@pytest.mark.slow
def test_each_record_is_there_once_also_after_a_trim(jobs, spark, fill, topic):
    fill(topic, {0: 30, 1: 10}, key=b"k", headers=[("h", b"x")])
    jobs.job().round()
    delete_to(jobs.bootstrap, topic, {0: 30, 1: 5})
    fill(topic, {0: 7})
    rows = union(jobs, spark).collect()
    assert sorted((row.partition, row.offset) for row in rows) == [
        (p, n) for p, c in ((0, 37), (1, 10)) for n in range(c)
    ]
    assert {row.key for row in rows if row.offset < 10} == {b"k"}
    assert rows[0].headers[0].value == b"x"
    assert union(jobs, spark).where("offset >= 30").count() == 7


@pytest.mark.slow
def test_records_of_a_new_partition_that_are_deleted_already_are_missed(lowtide, jobs, spark, fill, topic):
    from confluent_kafka.admin import NewPartitions

    fill(topic, {0: 3, 1: 3})
    jobs.job().round()
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    fill(topic, {2: 4})
    delete_to(jobs.bootstrap, topic, {2: 3})
    with pytest.raises(Exception, match="offset"):
        union(jobs, spark).collect()


@pytest.mark.slow
def test_new_records_have_the_columns_of_the_table(jobs, spark):
    send(jobs, 0, {"a": 1, "b": {"c": "x"}})
    jobs.job("json").round()
    send(jobs, 0, {"a": 2, "more": True, "b": {"c": "y", "d": 5}}, b"no JSON", {"a": 3})
    send(jobs, 1, {"a": 4})
    rows = union(jobs, spark).orderBy("kafka_partition", "kafka_offset").collect()
    assert [(row.kafka_partition, row.kafka_offset, row.a, row.b and row.b.c) for row in rows] == [
        (0, 0, 1, "x"),
        (0, 1, 2, "y"),
        (0, 3, 3, None),
        (1, 0, 4, None),
    ]
    assert "more" not in rows[0]


def test_another_topic_of_the_name_is_refused(jobs, spark, fill, topic):
    fill(topic, {0: 3})
    jobs.job().round()
    admin = AdminClient({"bootstrap.servers": jobs.bootstrap})
    admin.delete_topics([topic])[topic].result(60)
    make_topic(jobs.bootstrap, topic, 2)
    with pytest.raises(ProgressError, match="created again"):
        union(jobs, spark)


def test_a_table_that_does_not_exist_is_said(jobs, spark):
    with pytest.raises(OptionError, match=r"the table db\.numbers can't be read"):
        union(jobs, spark)
