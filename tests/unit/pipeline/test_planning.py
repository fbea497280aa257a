"""Which partitions are read."""

from __future__ import annotations

import pytest

from lowtide.pipeline.leaders import Leader, Topic
from lowtide.pipeline.planning import Planner
from lowtide.pipeline.read_options import read_options
from lowtide.protocol.types import TopicPartition


class FixedCluster:
    """It has a user's topic, and the topic of the groups' offsets."""

    topics = {  # noqa: RUF012
        "orders": Topic(b"i" * 16, {0: Leader(1, 0)}),
        "__consumer_offsets": Topic(b"j" * 16, {0: Leader(1, 0)}, is_internal=True),
    }

    def deadline(self, timeout_ms=None):
        return 0

    def find_topics(self, names, deadline_ms):
        return self.topics if names is None else {name: self.topics[name] for name in names}


@pytest.mark.parametrize(
    ("given", "topics"),
    [({"subscribePattern": ".*"}, ["orders"]), ({"subscribe": "__consumer_offsets"}, ["__consumer_offsets"])],
)
def test_a_pattern_finds_no_internal_topic(given, topics):
    """A stream that trims would delete the offsets of all groups."""
    planner = Planner(FixedCluster(), read_options({"kafka.bootstrap.servers": "b:1", **given}, is_stream=False))
    assert planner.select().partitions == tuple(TopicPartition(topic, 0) for topic in topics)
