"""Partitions that a topic gets while a table is written."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from lowtide.pipeline.tasks import DataLossError

from .conftest import delete_to
from .table_jobs import LocalJobs

BEFORE = [(partition, offset) for partition in range(2) for offset in range(3)]
"""Partitions and offsets of the records before."""


@pytest.fixture
def jobs(lowtide: SimpleNamespace, topic: str, tmp_path):
    made = LocalJobs(lowtide.bootstrap, topic, tmp_path)
    yield made
    made.close()


def add_a_partition(lowtide: SimpleNamespace, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": lowtide.bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)


def test_new_partitions_are_read_from_their_start(lowtide, jobs, fill, topic):
    fill(topic, {0: 3, 1: 3})
    jobs.job().round()
    add_a_partition(lowtide, topic)
    fill(topic, {2: 4})
    jobs.job().round()
    assert jobs.offsets() == [*BEFORE, *((2, offset) for offset in range(4))]


def test_records_of_a_new_partition_that_are_deleted_before_they_are_read_are_a_loss(lowtide, jobs, fill, topic):
    fill(topic, {0: 3, 1: 3})
    jobs.job().round()
    add_a_partition(lowtide, topic)
    fill(topic, {2: 4})
    delete_to(lowtide.bootstrap, topic, {2: 3})
    with pytest.raises(DataLossError, match="-2 begins at offset 3 now, but the table has it up to offset 0"):
        jobs.job().round()
    jobs.job(on_data_loss="skip").round()
    assert jobs.offsets() == [*BEFORE, (2, 3)]
