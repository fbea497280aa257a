"""Members of one group in separate processes, of Kafka's Java client and of franz-go: they join, leave and are killed,
and continue at the committed offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from . import load
from .franz_go import FranzGo
from .lowtide_process import LowtideProcess
from .members import QUICK, Client, Member, outputs_of, until
from .tools import JavaClient

pytestmark = pytest.mark.interop

PARTITIONS, PER_PARTITION = 6, 10
CHANGES = [
    ("classic", "classic"),
    ("classic", "classic"),
    ("consumer", "consumer"),
    ("consumer", "consumer"),
    ("classic", "consumer"),
    ("classic", "classic"),
]
"""The protocol of the joining members, and the group's protocol after the oldest of three members has left."""


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker that quickly detects failed members."""
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK) as process:
        yield process


@pytest.fixture(scope="module", params=["java", "franz-go"])
def client(
    request: pytest.FixtureRequest, quick_broker: LowtideProcess, tmp_path_factory: pytest.TempPathFactory
) -> Client:
    """Either of the clients."""
    if request.param == "java":
        return JavaClient(
            request.getfixturevalue("jars"), quick_broker.bootstrap, tmp_path_factory.mktemp("java")
        ).command
    program: Path = request.getfixturevalue("franz_go_program")
    return lambda name, **given: FranzGo(program, quick_broker.bootstrap).command(name, timeout="5m", **given)


_numbers = count()


@pytest.fixture
def topic(quick_broker: LowtideProcess) -> str:
    """A new topic, which is also the name of the group."""
    return make_topic(quick_broker, f"members-{next(_numbers)}")


def make_topic(broker: LowtideProcess, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(load.DEADLINE_S)
    return name


def protocol_of(broker: LowtideProcess, group: str) -> str:
    """Returns the type of a group: classic or consumer."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    [kind] = [
        each.type for each in admin.list_consumer_groups().result(load.DEADLINE_S).valid if each.group_id == group
    ]
    return str(kind.name).lower()


class Writer:
    """Writes to all partitions of a topic, and records their contents."""

    def __init__(self, broker: LowtideProcess, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": broker.bootstrap})
        self._topic = topic
        self.next = 0

    def write(self) -> set[tuple[str, int]]:
        """Writes a few records to each partition; return their positions."""
        offsets = range(self.next, self.next + PER_PARTITION)
        self.next += PER_PARTITION
        for partition in range(PARTITIONS):
            for offset in offsets:
                self._producer.produce(self._topic, f"{partition}/{offset}".encode(), partition=partition)
        assert self._producer.flush(load.DEADLINE_S) == 0
        return {(f"{self._topic}-{partition}", offset) for partition in range(PARTITIONS) for offset in offsets}


def shared(members: Sequence[Member], topic: str) -> Callable[[], bool]:
    """Returns whether each member has its share and no partition has two owners."""

    def check() -> bool:
        held = [member.held for member in members]
        sizes = {len(each) for each in held}
        everything = {f"{topic}-{number}" for number in range(PARTITIONS)}
        return sum(map(len, held)) == PARTITIONS and set().union(*held) == everything and max(sizes) - min(sizes) <= 1

    return check


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_join_leave_and_are_killed(
    client: Client, quick_broker: LowtideProcess, topic: str, protocol: str
) -> None:
    """After each change the partitions are reassigned, and new records are read once, from the committed offsets on."""
    with ExitStack() as stack:

        def join() -> Member:
            return stack.enter_context(Member(client("member", group=topic, topic=topic, protocol=protocol)))

        writer = Writer(quick_broker, topic)
        members: list[Member] = []

        def settle_and_read() -> None:
            outputs = partial(outputs_of, *members)
            until(shared(members, topic), outputs)
            before = Counter(record for member in members for record in member.read)
            written = writer.write()
            until(lambda: all(written & set(member.read) == written & places(member) for member in members), outputs)
            read = Counter(record for member in members for record in member.read) - before
            assert read == Counter(written), outputs()
            assert [line for member in members for line in member.said("refused")] == []

        def places(member: Member) -> set[tuple[str, int]]:
            """Returns all records in a member's partitions."""
            return {(partition, offset) for partition in member.held for offset in range(writer.next)}

        members.append(join())
        settle_and_read()
        assert protocol_of(quick_broker, topic) == protocol
        members += [join(), join()]
        settle_and_read()
        members.pop(1).leave()
        settle_and_read()
        members.pop().kill()
        settle_and_read()
        members.pop().leave()
        members.append(join())
        settle_and_read()
        members.pop().leave()


def test_a_pattern_matches_topics_that_are_created_later_too(
    client: Client, quick_broker: LowtideProcess, topic: str
) -> None:
    """The broker finds them (KIP-848)."""
    with Member(client("member", group=topic, pattern=f"{topic}-[a-c]", protocol="consumer")) as member:
        outputs = partial(outputs_of, member)
        for letter in "ad":
            make_topic(quick_broker, f"{topic}-{letter}", 1)
        until(lambda: member.held == {f"{topic}-a-0"}, outputs)
        make_topic(quick_broker, f"{topic}-b", 2)
        until(lambda: member.held == {f"{topic}-a-0", f"{topic}-b-0", f"{topic}-b-1"}, outputs)
        member.leave()


def test_a_group_changes_its_protocol_while_it_consumes(
    client: Client, quick_broker: LowtideProcess, topic: str
) -> None:
    """Members of both protocols share the topic, as during a rolling upgrade, and a downgrade."""
    writer = Writer(quick_broker, topic)
    with ExitStack() as stack:
        members: list[Member] = []
        outputs = lambda: outputs_of(*members)  # noqa: E731

        def replace_one(protocol: str) -> None:
            members.append(stack.enter_context(Member(client("member", group=topic, topic=topic, protocol=protocol))))
            until(shared(members, topic), outputs)
            if len(members) > 2:
                members.pop(0).leave()
                until(shared(members, topic), outputs)
            before = {record for member in members for record in member.read}
            written = writer.write()
            until(lambda: written <= {record for member in members for record in member.read} - before, outputs)

        for protocol, becomes in CHANGES:
            replace_one(protocol)
            assert protocol_of(quick_broker, topic) == becomes
        for member in members:
            member.leave()
