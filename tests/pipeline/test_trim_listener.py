"""`TrimListener` trims up to the slowest declared query, with the last batch and the rest of a killed run."""

from __future__ import annotations

import pytest

from lowtide.pipeline.ranges import QueryProgress
from lowtide.protocol.types import TopicPartition

from .conftest import run_to_its_end
from .test_stream_read import until
from .test_trim import begins  # noqa: F401 a fixture

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


@pytest.fixture
def started(spark, lowtide, tmp_path):
    """`started(name, topic)`: a query that reads available records, and then ends."""

    def started(name: str, topic: str) -> None:
        reader = (
            spark.readStream.format("lowtide")
            .option("kafka.bootstrap.servers", lowtide.bootstrap)
            .option("subscribe", topic)
        )
        writer = reader.option("startingOffsets", "earliest").load().writeStream.format("noop").queryName(name)
        run_to_its_end(writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True))

    return started


@pytest.fixture
def listening(spark, lowtide):
    """`listening(queries, ...)`: a listener that listens until the test ends."""
    from lowtide.pipeline import TrimListener

    added = []

    def listening(queries, **options):
        listener = TrimListener(lowtide.bootstrap, queries, **options)
        spark.streams.addListener(listener)
        added.append(listener)
        return listener

    yield listening
    for listener in added:
        spark.streams.removeListener(listener)


@pytest.mark.slow
def test_a_topic_is_trimmed_to_what_all_its_queries_have_consumed(listening, started, topic, fill, begins):  # noqa: F811
    listening({"fast": [topic], "slow": [topic]}, trimInterval="10ms")
    fill(topic, {0: 3, 1: 3})
    started("slow", topic)
    fill(topic, {0: 2})
    started("fast", topic)
    until(lambda: begins(topic) == [3, 3], "the least of both is trimmed")
    started("slow", topic)
    until(lambda: begins(topic) == [5, 3], "the last batch is trimmed too")


@pytest.mark.slow
def test_the_rest_of_a_run_is_trimmed_when_its_query_starts_again(listening, started, topic, fill, begins, tmp_path):  # noqa: F811
    """The run was stopped between its last commit and the trim; and no new record would cause another batch."""
    fill(topic, {0: 3, 1: 3})
    started("left", topic)
    assert begins(topic) == [0, 0]
    listening({"left": topic}, checkpoints={"left": str(tmp_path / "left")})
    started("left", topic)
    until(lambda: begins(topic) == [3, 3], "what was left is trimmed")


def test_the_least_positions_are_those_of_all_readers():
    from lowtide.pipeline.trim_listener import least_positions

    queries = {"a": frozenset({"t", "u"}), "b": frozenset({"t"})}
    a, b = QueryProgress({T0: 5, T1: 7, U0: 9}, {}), QueryProgress({T0: 6}, {})
    assert least_positions(queries, {"a": a}) == ({U0: 9}, {})
    assert least_positions(queries, {"a": a, "b": b}) == ({T0: 5, U0: 9}, {})
    assert least_positions(queries, {}) == ({}, {})


def test_readers_of_two_topics_of_one_name_do_not_trim_either():
    from lowtide.pipeline.trim_listener import least_positions

    queries = {"a": frozenset({"t"}), "b": frozenset({"t"})}
    old, new = QueryProgress({T0: 5}, {"t": b"1" * 16}), QueryProgress({T0: 6}, {"t": b"2" * 16})
    assert least_positions(queries, {"a": old, "b": new}) == ({}, {})
    assert least_positions(queries, {"a": new, "b": new}) == ({T0: 6}, {"t": b"2" * 16})


def test_ends_of_other_sources_are_ignored():
    from lowtide.pipeline.trim_listener import parse_ends

    texts = [
        '{"t": {"0": 5}}',
        '{"logOffset": 3}',
        "7",
        "-",
        "",
        '{"t": {"0": 4, "1": 2}, "@topicIds": {"t": "AAAAAAAAAAAAAAAAAAAAAQ"}}',
    ]
    assert parse_ends(texts) == QueryProgress({T0: 4, T1: 2}, {"t": bytes(15) + b"\1"})
