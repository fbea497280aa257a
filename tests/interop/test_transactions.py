"""Consume, transform and produce in transactions, by Kafka's Java client and franz-go: members are killed during their
work, and each record still counts once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from .franz_go import FranzGo
from .lowtide_process import LowtideProcess
from .members import QUICK, Client, Member, outputs_of, until
from .tools import JavaClient
from .topics import PARTITIONS, Topics

pytestmark = pytest.mark.interop

PER_PARTITION = 100


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker whose groups start at once."""
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK) as process:
        yield process


@pytest.fixture(scope="module")
def java(jars: Path, quick_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory) -> JavaClient:
    """The program with Kafka's Java client, compiled once."""
    return JavaClient(jars, quick_broker.bootstrap, tmp_path_factory.mktemp("java"))


@pytest.fixture(scope="module", params=["java", "franz-go"])
def client(request: pytest.FixtureRequest, quick_broker: LowtideProcess) -> Client:
    """Either of the clients."""
    if request.param == "java":
        java: JavaClient = request.getfixturevalue("java")
        return java.command
    program: Path = request.getfixturevalue("franz_go_program")
    return lambda name, **given: FranzGo(program, quick_broker.bootstrap).command(name, timeout="5m", **given)


@pytest.fixture(scope="module")
def topics(quick_broker: LowtideProcess) -> Topics:
    """The topics of the broker."""
    return Topics(quick_broker.bootstrap)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_each_record_is_transformed_once_though_a_member_is_killed(
    client: Client, topics: Topics, protocol: str, request: pytest.FixtureRequest
) -> None:
    """Two members copy a topic; they abort every fourth transaction.

    One is killed during its work, another replaces it.
    """
    name = f"copied-{request.node.callspec.id}"
    topics.make(name, f"{name}-out")
    values = {number: [f"{number}/{count}" for count in range(PER_PARTITION)] for number in range(PARTITIONS)}

    def join(number: int) -> Member:
        return Member(
            client("transform", group=name, topic=name, protocol=protocol, id=f"{name}-{number}", out=f"{name}-out")
        )

    with ExitStack() as stack:
        first, second = stack.enter_context(join(1)), stack.enter_context(join(2))
        members = [first, second]
        outputs = partial(outputs_of, *members)
        until(lambda: bool(first.held and second.held), outputs)
        topics.write(name, {number: texts[:50] for number, texts in values.items()})
        until(lambda: bool(first.said("ended")), outputs)
        first.kill()
        members.append(stack.enter_context(join(1)))
        topics.write(name, {number: texts[50:] for number, texts in values.items()})
        everything = {(name, number): PER_PARTITION for number in values}
        until(lambda: topics.committed(name) == everything, lambda: (topics.committed(name), outputs_of(*members)))
        read = topics.read_committed(f"{name}-out")
        assert Counter(value for _, value in read) == Counter(text for texts in values.values() for text in texts)
        ended = [line for member in members for line in member.said("ended")]
        assert any(line["committed"] for line in ended)
        assert not all(line["committed"] for line in ended)
        for member in members[1:]:
            member.leave()
