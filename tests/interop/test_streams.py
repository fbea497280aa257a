"""Kafka Streams with exactly-once processing, in classic and in streams groups (KIP-1071).

Instances join, leave and are killed, and repartition topics are purged (KIP-811).

With INTEROP_KAFKA=HOST:PORT the tests run against that Kafka node instead, to check what they expect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from lowtide import BlockingAdminClient

from .lowtide_process import LowtideProcess
from .members import QUICK, Member, outputs_of, until
from .streaming import EACH_PROTOCOL, QUICK_STREAMS, Join, WordCount, tasks_of
from .tools import JavaClient
from .topics import PARTITIONS, Topics

pytestmark = pytest.mark.interop

LINES = 500
"""Enough that the application still works on them when it is killed."""

TASKS = {f"{subtopology}_{partition}" for subtopology in range(2) for partition in range(PARTITIONS)}
"""Of the word count: those that read lines, and those that count."""

_numbers = count()


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that quickly detects joins and failures."""
    if "INTEROP_KAFKA" in os.environ:
        yield os.environ["INTEROP_KAFKA"]
        return
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK, **QUICK_STREAMS) as process:
        yield process.bootstrap


@pytest.fixture(scope="module")
def java(jars: Path, bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """The program with Kafka Streams, compiled once."""
    return JavaClient(jars, bootstrap, tmp_path_factory.mktemp("java"))


@pytest.fixture
def words(java: JavaClient, bootstrap: str, tmp_path: Path) -> WordCount:
    """A word count with new topics."""
    made = WordCount(Topics(bootstrap), java, tmp_path, f"words-{os.getpid()}-{next(_numbers)}")
    made.make("lines", "counts")
    return made


@pytest.fixture
def join(java: JavaClient, bootstrap: str, tmp_path: Path) -> Join:
    """A join with new topics and its customers."""
    made = Join(Topics(bootstrap), java, tmp_path, f"join-{os.getpid()}-{next(_numbers)}")
    made.make_all()
    return made


def shared_by(*members: Member) -> Callable[[], bool]:
    """Returns whether each instance has tasks, and all of them together have each task once."""

    def check() -> bool:
        each = [tasks_of(member) for member in members]
        return all(each) and sum(map(len, each)) == len(TASKS) and set().union(*each) == TASKS

    return check


@EACH_PROTOCOL
def test_each_word_counts_once_though_the_application_is_killed(words: WordCount, protocol: str) -> None:
    """The counts rise by one for each word, over both runs of the application."""

    def consumed() -> int:
        return sum(words.topics.committed(words.group).get((words.topic("lines"), n), 0) for n in range(PARTITIONS))

    with ExitStack() as stack:
        first = stack.enter_context(words.start(protocol))
        words.write(LINES)
        until(lambda: consumed() > 0, partial(outputs_of, first))
        first.kill()
        words.write(LINES)
        second = stack.enter_context(words.start(protocol))
        until(words.is_complete, partial(outputs_of, first, second))
        words.check()
        second.leave()


@EACH_PROTOCOL
def test_a_second_instance_joins_and_leaves(words: WordCount, protocol: str) -> None:
    """The tasks are shared between the two, and return to the first; each word still counts once."""
    with ExitStack() as stack:
        members = [stack.enter_context(words.start(protocol))]
        outputs = lambda: outputs_of(*members)  # noqa: E731
        words.write(LINES // 10)
        until(shared_by(members[0]), outputs)
        members.append(stack.enter_context(words.start(protocol)))
        until(shared_by(*members), outputs)
        words.write(LINES // 10)
        until(words.is_complete, outputs)
        members.pop().leave()
        until(shared_by(members[0]), outputs)
        words.write(LINES // 10)
        until(words.is_complete, outputs)
        words.check()
        members[0].leave()


@EACH_PROTOCOL
def test_orders_are_joined_once_and_repartition_topics_are_purged(join: Join, protocol: str) -> None:
    """All consumed records of both repartition topics are deleted soon after their commit."""
    purged = [join.topic("by-customer-repartition"), join.topic("by-region-repartition")]
    with join.start(protocol) as member:
        outputs = partial(outputs_of, member)
        join.write(LINES)
        until(join.is_complete, outputs)
        join.check()

        def is_purged() -> bool:
            committed = join.topics.committed(join.group)
            return all(
                start == committed.get((topic, number), 0)
                for topic in purged
                for number, start in enumerate(join.topics.log_starts(topic))
            )

        until(is_purged, outputs)
        assert all(sum(join.topics.log_starts(topic)) >= LINES for topic in purged)
        member.leave()


def test_a_classic_group_becomes_a_streams_group_and_back(words: WordCount, bootstrap: str) -> None:
    """Offline, as Kafka does it: the application starts with the other protocol when the group is empty.

    A classic instance does not leave its group when it stops; its session ends. Until then the other protocol is
    refused.
    """
    with BlockingAdminClient(bootstrap) as admin, ExitStack() as stack:
        for protocol in ("classic", "streams", "classic"):
            member = stack.enter_context(words.start(protocol))
            words.write(LINES // 10)
            until(words.is_complete, partial(outputs_of, member))
            if protocol == "classic":
                refused = stack.enter_context(words.start("streams"))
                until(lambda refused=refused: bool(refused.said("failed")), partial(outputs_of, refused))
                [failed] = refused.said("failed")
                assert "is not a streams group" in failed["error"]
            member.leave()
            until(lambda: admin.list_groups().groups[words.group].state == "Empty", partial(outputs_of, member))
    words.check()
