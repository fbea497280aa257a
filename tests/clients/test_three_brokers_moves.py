"""Replicas and leaders moved in a cluster of three: the client's methods, and the commands over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowtide import BlockingAdminClient, LowtideCluster, TopicPartition
from lowtide.admin import NewTopic
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.protocol.errors import ErrorCode

from .command_lines import answer, run, sentence
from .driver import until


@pytest.fixture(scope="module")
def three() -> Iterator[LowtideCluster]:
    with LowtideCluster(brokers=3) as cluster:
        yield cluster


def test_replicas_are_moved_and_leaders_elected(three: LowtideCluster) -> None:
    """Uses the client's methods and the commands; an impossible move is an error of its partition only."""
    key, unknown = TopicPartition("moved-by-the-client", 0), TopicPartition("nothing", 0)
    with BlockingAdminClient(three.bootstrap) as admin:
        created = admin.create_topics([NewTopic(name=key.topic, assignments={0: (1, 2)})], timeout=120)[key.topic]
        assert not isinstance(created, AdminError)
        begun = admin.alter_reassignments({key: [3, 2], unknown: [1]}, timeout=120)
        assert begun[key] is None
        assert getattr(begun[unknown], "code", None) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        until(lambda: key not in admin.list_reassignments(timeout=120))
        until(lambda: admin.describe_topics([key.topic], timeout=120)[key.topic].partitions[0].replicas == (3, 2))
        run("cluster", "move", f"{key.topic}:0", "--replicas", "2,3,1", "--yes", bootstrap=three.bootstrap)
        until(lambda: set(admin.describe_topics([key.topic], timeout=120)[key.topic].partitions[0].isr) == {1, 2, 3})
        assert admin.elect_leaders([key], timeout=120) == {key: None}
        until(lambda: admin.describe_topics([key.topic], timeout=120)[key.topic].partitions[0].leader == 2)
        assert admin.elect_leaders([key], timeout=120) == {key: None}, "there is no need: that is no error"
        cancelled = admin.alter_reassignments({key: None}, timeout=120)[key]
        assert getattr(cancelled, "code", None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        with pytest.raises(BrokerAnsweredError):
            admin.unregister_broker(1, timeout=120)
    assert run("cluster", "moves", bootstrap=three.bootstrap).stdout == "Nothing is being moved.\n"
    assert answer("cluster", "moves", "--wait", bootstrap=three.bootstrap) == {"moves": [], "waited": True}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("move",), "give partitions and --replicas, or --file."),
        (("move", "t", "--file", "x"), "give partitions and --replicas, or --file."),
        (("move", "nothing", "--replicas", "1"), "there is no topic nothing, or you may not describe it."),
        (("move", "moved:7", "--replicas", "1"), "topic moved has no partition 7: it has 1."),
        (
            ("move", "moved", "--replicas", "1,1"),
            "--replicas 1,1 is invalid: it must be broker ids, each once, as in 1,2,3.",
        ),
        (("replace", "1", "9"), "broker 9 does not exist or is fenced: start it first."),
    ],
)
def test_moves_that_mean_nothing_are_refused(three: LowtideCluster, words: tuple[str, ...], reason: str) -> None:
    with BlockingAdminClient(three.bootstrap) as admin:
        admin.create_topics([NewTopic(name="moved", partitions=1, replication_factor=1)], timeout=120)
    assert sentence("cluster", *words, code=2, bootstrap=three.bootstrap) == f"lowtide cluster {words[0]}: {reason}"
