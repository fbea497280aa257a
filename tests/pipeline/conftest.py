"""One Spark for all tests of the folder, on the broker of the session; topics, and records in them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from .local_spark import local_spark

PYSPARK_IS_HERE = importlib.util.find_spec("pyspark") is not None
JAVA_IS_HERE = shutil.which("java") is not None or "JAVA_HOME" in os.environ

FOLDER = Path(__file__).parent

LIMIT_S = 600
"""The time for a stream to end, on a busy machine."""

NEED_SPARK = (
    *(
        "batch_read",
        "imports",
        "kills",
        "logins",
        "spark_example",
        "stream_read",
        "table",
        "table_command",
        "table_dead_rounds",
        "table_erase",
        "table_kills",
        "table_partitions",
        "table_registry",
        "trim",
        "trim_listener",
        "worker_garbage",
        "write",
    ),
)

collect_ignore = [] if PYSPARK_IS_HERE or os.environ.get("CI") else [f"test_{what}.py" for what in NEED_SPARK]
"""These files can't be imported without PySpark, which `make test` installs. CI has it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what starts Spark where there is no Java, except in CI, which runs everything."""
    if JAVA_IS_HERE or os.environ.get("CI"):
        return
    for item in items:
        if item.path.parent == FOLDER and item.path.stem.removeprefix("test_") in NEED_SPARK:
            item.add_marker(pytest.mark.skip(reason="java is not installed: Spark needs 17 or newer"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A Spark of two cores in this process. It finds the format by itself."""
    with local_spark(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture(scope="session")
def producer(lowtide: SimpleNamespace) -> Iterator[Any]:
    from confluent_kafka import Producer

    made = Producer({"bootstrap.servers": lowtide.bootstrap, "linger.ms": 1})
    yield made
    made.flush(120)


@pytest.fixture
def topic(lowtide: SimpleNamespace, lowtide_topic: str) -> str:
    """A topic of two partitions. Its records may be old."""
    make_topic(lowtide.bootstrap, lowtide_topic, 2, **{"retention.ms": "-1"})
    return lowtide_topic


def make_topic(bootstrap: str, name: str, partitions: int, **config: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(120)


Fill = Callable[..., None]


@pytest.fixture
def fill(lowtide: SimpleNamespace) -> Fill:
    """`fill(topic, {partition: count})`: values `v0`, `v1`, ... continue after those of the last call."""
    written: dict[tuple[str, int], int] = {}

    def fill(topic: str, counts: dict[int, int], **fields: object) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": lowtide.bootstrap, "linger.ms": 1}
        )  # A kept producer does not see new partitions at once.
        for partition, count in counts.items():
            first = written.get((topic, partition), 0)
            for index in range(first, first + count):
                producer.produce(topic, value=f"v{index}", partition=partition, **fields)
            written[topic, partition] = first + count
        assert producer.flush(120) == 0

    return fill


@pytest.fixture
def read(spark: SimpleNamespace, lowtide: SimpleNamespace):
    """`read(subscribe=topic, ...)`: a data frame of a batch."""

    def read(**options: object):
        reader = spark.read.format("lowtide").option("kafka.bootstrap.servers", lowtide.bootstrap)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), str(value))
        return reader.load()

    return read


def offsets(frame) -> dict[int, list[int]]:
    """Returns the offsets of each partition, in order."""
    found: dict[int, list[int]] = {}
    for row in sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect()):
        found.setdefault(row[0], []).append(row[1])
    return found


def run_to_its_end(writer) -> None:
    """Runs a stream that ends by itself."""
    query = writer.start()
    try:
        assert query.awaitTermination(LIMIT_S)
    finally:
        query.stop()


def delete_to(bootstrap: str, topic: str, until: dict[int, int]) -> None:
    """Deletes records below an offset of each partition."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for result in admin.delete_records(
        [TopicPartition(topic, partition, offset) for partition, offset in until.items()]
    ).values():
        result.result(120)
