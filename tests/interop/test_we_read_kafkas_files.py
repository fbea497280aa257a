"""Lowtide serves a log directory that Kafka wrote: topics, configurations, records, log start offsets."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowtide import LowtideCluster

from . import load
from .kafka import NODE_ID, Kafka, dump

pytestmark = pytest.mark.interop

TOPIC, DELETED_WHOLE = "interop", "deleted-whole"
DELETED = 1234
CONFIGURED = {"retention.ms": "86400000", "cleanup.policy": "compact,delete"}
CONFIG = {"node.id": str(NODE_ID), "log.segment.bytes": "1048576"}


@pytest.fixture
def written(kafka: Kafka) -> list[load.Entry]:
    """Kafka's records in partition 1 of 2; then a prefix was deleted, and all records of the other topic."""
    kafka.start()
    load.create_topic(kafka.bootstrap, TOPIC, partitions=2)
    load.create_topic(kafka.bootstrap, DELETED_WHOLE, configs=CONFIGURED)
    entries = load.produce(kafka.bootstrap, TOPIC, partition=1)
    load.produce(kafka.bootstrap, DELETED_WHOLE, codecs=["none"])
    load.delete_below(kafka.bootstrap, TOPIC, DELETED, partition=1)
    load.delete_below(kafka.bootstrap, DELETED_WHOLE, load.PER_CODEC)
    kafka.stop()
    return entries


def test_the_tool_accepts_kafkas_own_files_too(jars: Path, kafka: Kafka, written: list[load.Entry]) -> None:
    """The control case for `test_kafka_reads_our_files.py`: Kafka's own segments have the ignored lines too."""
    folder = kafka.directory / f"{TOPIC}-1"
    logs = sorted(folder.glob("*.log"))
    found = dump(jars, logs)
    assert f"-1 is followed by {int(logs[-1].stem)}" in found.text
    assert found.invalid == []
    assert found.records[-1].payload == written[-1].value.decode()


def test_topics_records_and_log_start_offsets_are_there(kafka: Kafka, written: list[load.Entry]) -> None:
    with LowtideCluster(data_directory=kafka.directory, config=CONFIG) as cluster:
        assert load.offsets(cluster.bootstrap, TOPIC, 0) == (0, 0)
        assert load.offsets(cluster.bootstrap, TOPIC, 1) == (DELETED, load.COUNT)
        assert load.offsets(cluster.bootstrap, DELETED_WHOLE) == (load.PER_CODEC, load.PER_CODEC)
        assert load.configs_set(cluster.bootstrap, DELETED_WHOLE) == CONFIGURED
        assert load.configs_set(cluster.bootstrap, TOPIC) == {}
        assert load.read(cluster.bootstrap, TOPIC, DELETED, load.COUNT, partition=1) == written[DELETED:]
        for offset in (DELETED, 1777, load.COUNT - 1):
            assert load.offset_for_time(cluster.bootstrap, TOPIC, written[offset].timestamp_ms, partition=1) == offset


def test_it_continues_where_kafka_stopped(kafka: Kafka, written: list[load.Entry], tmp_path: Path) -> None:
    """Appends follow Kafka's records, deletes go beyond Kafka's, and both survive a restart of Lowtide."""
    with LowtideCluster(data_directory=kafka.directory, config=CONFIG) as cluster:
        written += load.produce(cluster.bootstrap, TOPIC, partition=1, first_offset=load.COUNT, codecs=["zstd"])
        load.delete_below(cluster.bootstrap, TOPIC, 2000, partition=1)
    with LowtideCluster(data_directory=kafka.directory, config=CONFIG) as cluster:
        assert load.offsets(cluster.bootstrap, TOPIC, 1) == (2000, len(written))
        assert load.read(cluster.bootstrap, TOPIC, 2000, len(written), partition=1) == written[2000:]
