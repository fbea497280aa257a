"""DescribeTopicPartitions: pages, their order, their boundaries, and replicas that the broker cannot reach."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.handlers.describe_topic_partitions import handler
from lowtide.broker.turns import Turns
from lowtide.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import Listener
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from tests.examples import examples

ONE_SLICE: Any = Turns(None, SimpleNamespace(monotonic_ms=lambda: 0))
"""No time passes: each response is there at once."""

ALL = 3576

Place = tuple[str, int]
Row = tuple[str | None, int, list[int]]


HERE = (Listener("PLAINTEXT", "host", 9092),)
CONTEXT: Any = SimpleNamespace(connection=SimpleNamespace(listener_name="PLAINTEXT"))


def image(**counts: int) -> MetadataImage:
    state = PartitionImage((0,), (0,), (1,), 0, 4, 7, 3)
    topics = {
        name: TopicImage(name, name.encode().ljust(16), (state,) * count, {}, 3) for name, count in counts.items()
    }
    return MetadataImage(9, "c", 0, 1, {0: BrokerImage(0, 1, HERE)}, topics)


def ask(
    state: MetadataImage,
    names: Sequence[str] = (),
    limit: int = 2000,
    cursor: Place | None = None,
    *,
    config: dict[str, str] | None = None,
    offline: frozenset[TopicPartition] = frozenset(),
) -> DescribeTopicPartitionsResponse:
    replicas = SimpleNamespace(broker_id=0, offline=SimpleNamespace(keys=offline))
    settings = load_config(settings=config or {})
    broker: Any = SimpleNamespace(
        metadata=SimpleNamespace(image=state), config=settings, replicas=replicas, turns=ONE_SLICE, log=None
    )
    handle = handler(broker).handle
    assert handle is not None
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = handle(request, CONTEXT)
    assert isinstance(answer, DescribeTopicPartitionsResponse)
    return answer


def rows(answer: DescribeTopicPartitionsResponse) -> list[Row]:
    return [
        (topic.name, topic.error_code, [row.partition_index for row in topic.partitions]) for topic in answer.topics
    ]


def following(answer: DescribeTopicPartitionsResponse) -> Place | None:
    return None if answer.next_cursor is None else (answer.next_cursor.topic_name, answer.next_cursor.partition_index)


THREE = image(b=3, a=2, __consumer_offsets=1)


def test_all_topics_in_the_order_of_their_names() -> None:
    answer = ask(THREE)
    assert rows(answer) == [("__consumer_offsets", 0, [0]), ("a", 0, [0, 1]), ("b", 0, [0, 1, 2])]
    assert [topic.is_internal for topic in answer.topics] == [True, False, False]
    assert [topic.topic_authorized_operations for topic in answer.topics] == [ALL] * 3
    assert answer.topics[1].topic_id == THREE.topics["a"].topic_id
    assert following(answer) is None


def test_a_partition_has_all_fields() -> None:
    [row] = ask(image(t=1)).topics[0].partitions
    assert (row.error_code, row.leader_id, row.leader_epoch, row.replica_nodes, row.isr_nodes) == (0, 0, 4, [0], [0])
    assert (row.eligible_leader_replicas, row.last_known_elr, row.offline_replicas) == ([], [], [])


def test_named_topics_are_answered_once_and_missing_ones_with_a_code() -> None:
    answer = ask(THREE, ["nobody", "b", "a b", "", "b", "x" * 250, "__transaction_state"])
    assert rows(answer) == [
        ("", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
        ("__transaction_state", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ("a b", ErrorCode.INVALID_TOPIC_EXCEPTION, []),
        ("b", 0, [0, 1, 2]),
        ("nobody", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION, []),
    ]
    unknown = answer.topics[4]
    assert (unknown.topic_id, unknown.is_internal, unknown.topic_authorized_operations) == (ZERO_TOPIC_ID, False, ALL)
    assert answer.topics[1].is_internal


@pytest.mark.parametrize(
    ("limit", "expected", "cursor"),
    [
        (-1, [("a", 0, [0])], ("a", 1)),
        (0, [("a", 0, [0])], ("a", 1)),
        (1, [("a", 0, [0])], ("a", 1)),
        (2, [("a", 0, [0, 1])], ("b", 0)),
        (3, [("a", 0, [0, 1]), ("b", 0, [0])], ("b", 1)),
        (5, [("a", 0, [0, 1]), ("b", 0, [0, 1, 2])], ("nobody", 0)),
        (6, [("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("nobody", 3, [])], None),
    ],
)
def test_the_clients_limit(limit: int, expected: list[Row], cursor: Place | None) -> None:
    """At least one partition; the cursor names the next row even if it does not exist."""
    answer = ask(image(b=3, a=2), ["a", "b", "nobody"], limit)
    assert (rows(answer), following(answer)) == (expected, cursor)


def test_the_brokers_limit() -> None:
    """Two thousand unless it is configured; a client can ask for less, not for more."""
    assert following(ask(image(t=2001), [], 10_000)) == ("t", 2000)
    assert following(ask(image(t=5), [], 10_000, config={"max.request.partition.size.limit": "3"})) == ("t", 3)
    assert following(ask(image(t=5), [], 2, config={"max.request.partition.size.limit": "3"})) == ("t", 2)


@pytest.mark.parametrize(
    ("names", "cursor", "expected"),
    [
        ([], ("a", 1), [("a", 0, [1]), ("b", 0, [0, 1, 2])]),
        (["b", "a"], ("a", 1), [("a", 0, [1]), ("b", 0, [0, 1, 2])]),
        ([], ("a", 99), [("a", 0, []), ("b", 0, [0, 1, 2])]),
        ([], ("a", 2**31 - 1), [("a", 0, []), ("b", 0, [0, 1, 2])]),
        ([], ("ab", 2), [("b", 0, [0, 1, 2])]),
        ([], ("", 0), [("a", 0, [0, 1]), ("b", 0, [0, 1, 2])]),
        ([], ("z", 0), []),
        (["nobody", "a"], ("nobody", 5), [("nobody", 3, [])]),
    ],
)
def test_a_page_begins_at_the_cursor(names: list[str], cursor: Place, expected: list[Row]) -> None:
    """Also if its topic or partition was deleted meanwhile."""
    answer = ask(image(b=3, a=2), names, cursor=cursor)
    assert (rows(answer), following(answer)) == (expected, None)


@pytest.mark.parametrize(
    ("names", "cursor", "refused"),
    [
        (["b", "b", "nobody"], ("a", 0), ["b", "b", "nobody"]),
        (["b"], ("z", 0), ["b"]),
        (["b"], ("", 0), ["b"]),
        (["b", "a"], ("a", -1), ["b", "a"]),
        ([], ("a", -1), []),
    ],
)
def test_a_cursor_that_cannot_be(names: list[str], cursor: Place, refused: list[str]) -> None:
    """A topic outside the request, or a negative partition: every requested row is refused, without details."""
    answer = ask(image(b=3, a=2), names, cursor=cursor)
    assert (rows(answer), following(answer)) == ([(name, ErrorCode.INVALID_REQUEST, []) for name in refused], None)
    assert {topic.topic_authorized_operations for topic in answer.topics} <= {-(2**31)}


def test_replicas_that_cannot_serve() -> None:
    """With a dead broker, or a log directory offline here: no leader, listed as offline, and no error."""
    dead = PartitionImage((0, 1), (1,), (8,), 1, 5, 7, 3)
    failed = PartitionImage((0,), (0,), (1,), 0, 5, 7, 3)
    topic = TopicImage("t", b"t" * 16, (dead, failed, failed), {}, 3)
    state = MetadataImage(9, "c", 0, 1, {0: BrokerImage(0, 1, HERE)}, {"t": topic})
    found = ask(state, offline=frozenset({TopicPartition("t", 1)})).topics[0].partitions
    assert [
        (row.error_code, row.leader_id, row.leader_epoch, row.isr_nodes, row.offline_replicas) for row in found
    ] == [(0, -1, 5, [1], [1]), (0, -1, 5, [], [0]), (0, 0, 5, [0], [])]


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "ab", "b", "c.d", "z"]), st.integers(1, 6)), st.integers(1, 7))
def test_pages_together_are_everything(counts: dict[str, int], limit: int) -> None:
    """The cursor leads to every partition of every topic once, in order, and no page is larger than the limit."""
    seen: list[Place] = []
    cursor: Place | None = None
    while True:
        answer = ask(image(**counts), [], limit, cursor)
        page = [(topic.name or "", row.partition_index) for topic in answer.topics for row in topic.partitions]
        assert len(page) <= limit
        seen += page
        cursor = following(answer)
        if cursor is None:
            break
    assert seen == [(name, number) for name in sorted(counts) for number in range(counts[name])]
