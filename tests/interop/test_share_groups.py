"""Members of one share group (KIP-932) in separate processes, of Kafka's Java client and of franz-go: each record is
acknowledged once, while members come, stall and are killed, and brokers die.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lowtide import BlockingAdminClient, LowtideCluster
from lowtide.admin.configs import ConfigChange, ConfigResource
from lowtide.protocol.config_values import ConfigResourceType
from tests.free_ports import free_ports

from . import load
from .franz_go import FranzGo
from .lowtide_process import LowtideProcess
from .members import Member, outputs_of, until
from .tools import JavaClient

pytestmark = pytest.mark.interop

PARTITIONS, PER_PARTITION = 3, 40
QUICK = {
    "group_share_min_session_timeout_ms": "6000",
    "group_share_session_timeout_ms": "6000",
    "group_share_min_heartbeat_interval_ms": "300",
    "group_share_heartbeat_interval_ms": "300",
    "group_share_min_record_lock_duration_ms": "1000",
    "group_share_record_lock_duration_ms": "3000",
}
"""Settings of a broker that gives records to others soon."""

PER_POLL = 10

_numbers = count()


Share = Callable[..., list[str]]
"""The command line of a member of a share group, given the broker, its group, topic and what it does with records."""


@pytest.fixture(scope="module", params=["java", "franz-go"])
def share(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Share:
    """Starts members of either of the clients."""
    if request.param == "java":
        java = JavaClient(request.getfixturevalue("jars"), "", tmp_path_factory.mktemp("share"))
        return lambda bootstrap, **given: java.against(bootstrap).command("sharer", **given)
    program: Path = request.getfixturevalue("franz_go_program")
    return lambda bootstrap, **given: FranzGo(program, bootstrap).command("sharer", timeout="5m", **given)


def begin_early(bootstrap: str, group: str, **more: str) -> None:
    """Have a group begin with the first record; `more` has other configurations."""
    settings = {"share_auto_offset_reset": "earliest"} | more
    changes = [ConfigChange(key.replace("_", "."), value) for key, value in settings.items()]
    with BlockingAdminClient(bootstrap) as admin:
        resource = ConfigResource(ConfigResourceType.GROUP, group)
        assert admin.alter_configs({resource: changes}) == {resource: None}


@pytest.fixture(scope="module")
def quick_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LowtideProcess]:
    """A broker that quickly detects failed members."""
    with LowtideProcess(tmp_path_factory.mktemp("lowtide") / "data", **QUICK) as process:
        yield process


def make_topic(bootstrap: str, name: str, partitions: int = PARTITIONS, replicas: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(load.DEADLINE_S)
    return name


def write(bootstrap: str, topic: str, partitions: int = PARTITIONS, first: int = 0) -> set[tuple[str, int]]:
    """Writes numbered records to each partition; return their places."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 7, "acks": "all"})
    for number in range(first, first + PER_PARTITION):
        for partition in range(partitions):
            producer.produce(topic, f"{partition}/{number}".encode(), partition=partition)
    assert producer.flush(load.DEADLINE_S) == 0
    return {
        (f"{topic}-{partition}", number)
        for partition in range(partitions)
        for number in range(first, first + PER_PARTITION)
    }


def got(*members: Member) -> list[tuple[str, int]]:
    return [(line["at"], line["offset"]) for member in members for line in member.said("got")]


def stored(*members: Member) -> list[tuple[str, int]]:
    """Returns the records whose acknowledgements were answered without an error."""
    return [record for member in members for record in member.read]


def all_once(written: set[tuple[str, int]], *members: Member) -> bool:
    """Returns whether each record was acknowledged. Errors: AssertionError for one that was twice."""
    seen = Counter(stored(*members))
    twice = [record for record, times in seen.items() if times > 1]
    assert twice == [], (twice, outputs_of(*members))
    return set(seen) == written


def test_members_share_each_partition_and_no_record_is_acknowledged_twice(
    share: Share, quick_broker: LowtideProcess
) -> None:
    """More members than partitions: records of a killed member go to others at once, with their count."""
    name, bootstrap = make_topic(quick_broker.bootstrap, f"share-{next(_numbers)}", 2), quick_broker.bootstrap
    begin_early(bootstrap, name, share_record_lock_duration_ms="60000")
    member = partial(share, bootstrap, group=name, topic=name)
    with ExitStack() as stack:
        holder = stack.enter_context(Member(member(how="hold")))
        written = write(bootstrap, name, 2)
        outputs = partial(outputs_of, holder)
        until(lambda: len(got(holder)) >= PER_POLL, outputs)
        others = [stack.enter_context(Member(member(how="accept"))) for _ in range(3)]
        outputs = partial(outputs_of, holder, *others)
        until(lambda: len(stored(*others)) > 0, outputs)
        held = set(got(holder))
        holder.kill()
        assert not held & set(stored(*others)), "no other member had them"
        until(lambda: all_once(written, *others), outputs)
        counts = {
            line["count"] for other in others for line in other.said("got") if (line["at"], line["offset"]) in held
        }
        assert counts == {2}, "the delivery to a member that dies counts"
        for other in others:
            other.leave()


def test_records_of_a_member_that_stalls_are_delivered_again(share: Share, quick_broker: LowtideProcess) -> None:
    """The locks time out; connection and session stay open."""
    name, bootstrap = make_topic(quick_broker.bootstrap, f"share-{next(_numbers)}", 1), quick_broker.bootstrap
    begin_early(bootstrap, name)
    member = partial(share, bootstrap, group=name, topic=name)
    with ExitStack() as stack:
        holder = stack.enter_context(Member(member(how="hold")))
        written = write(bootstrap, name, 1)
        until(lambda: len(got(holder)) >= PER_POLL, partial(outputs_of, holder))
        os.kill(holder.pid, signal.SIGSTOP)
        other = stack.enter_context(Member(member(how="accept")))
        until(lambda: all_once(written, other), partial(outputs_of, holder, other))
        held = set(got(holder))
        assert {line["count"] for line in other.said("got") if (line["at"], line["offset"]) in held} == {2}
        assert 1 in {line["count"] for line in other.said("got")}, "beyond what the first one had, or was to have next"
        os.kill(holder.pid, signal.SIGCONT)
        other.leave()


@pytest.mark.parametrize(("how", "deliveries"), [("release", 5), ("reject", 1)])
def test_records_that_are_not_accepted_end(
    share: Share, quick_broker: LowtideProcess, how: str, deliveries: int
) -> None:
    """Rejected ones at once, released ones after five deliveries; then there is nothing left for another member."""
    name, bootstrap = make_topic(quick_broker.bootstrap, f"share-{next(_numbers)}", 1), quick_broker.bootstrap
    begin_early(bootstrap, name)
    written = write(bootstrap, name, 1)
    with Member(share(bootstrap, group=name, topic=name, how=how)) as member:
        until(lambda: Counter(stored(member)) == dict.fromkeys(written, deliveries), partial(outputs_of, member))
        assert Counter(line["count"] for line in member.said("got")) == dict.fromkeys(
            range(1, deliveries + 1), len(written)
        )
        with Member(share(bootstrap, group=name, topic=name, how="accept")) as other:
            later = write(bootstrap, name, 1, first=PER_PARTITION)
            member.kill()
            until(lambda: later <= set(stored(other)) | set(got(member)), partial(outputs_of, member, other))
            assert not written & set(got(other))


def test_a_member_asks_for_more_time(share: Share, quick_broker: LowtideProcess) -> None:
    """KIP-1222."""
    name, bootstrap = make_topic(quick_broker.bootstrap, f"share-{next(_numbers)}", 1), quick_broker.bootstrap
    begin_early(bootstrap, name)
    written = write(bootstrap, name, 1)
    with Member(share(bootstrap, group=name, topic=name, how="renew")) as member:
        until(lambda: all_once(written, member), partial(outputs_of, member))
        assert {(line["at"], line["offset"]) for line in member.said("renewed")} == written
        member.leave()


def test_a_broker_is_killed_and_started_again(share: Share, tmp_path: Path) -> None:
    """Acknowledged records are not delivered again; others are."""
    [port] = free_ports(1)
    settings = QUICK | {"listeners": f"PLAINTEXT://127.0.0.1:{port}"}
    with LowtideProcess(tmp_path / "data", **settings) as broker:
        name, bootstrap = make_topic(broker.bootstrap, "killed"), broker.bootstrap
        begin_early(bootstrap, name)
        with ExitStack() as stack:
            members = [
                stack.enter_context(Member(share(bootstrap, group=name, topic=name, how="accept"))) for _ in range(2)
            ]
            outputs = partial(outputs_of, *members)
            written = write(bootstrap, name)
            until(lambda: len(stored(*members)) > 0, outputs)
            broker.kill()
            with LowtideProcess(tmp_path / "data", after_kill=True, **settings):
                written |= write(bootstrap, name, first=PER_PARTITION)
                until(lambda: set(got(*members)) == written and all_once_or_unknown(written, *members), outputs)
                for member in members:
                    member.leave()


def all_once_or_unknown(written: set[tuple[str, int]], *members: Member) -> bool:
    """Like `all_once`, except for records whose acknowledgement was stored but not answered."""
    refused = {(line["at"], line["offset"]) for member in members for line in member.said("refused")}
    all_once(written, *members)
    return written <= set(stored(*members)) | refused


def test_three_brokers_of_which_the_leader_goes(share: Share) -> None:
    """It leads partitions and share coordinators; the next ones continue with what is stored."""
    settings = {key.replace("_", "."): value for key, value in QUICK.items()}
    with LowtideCluster(brokers=3, config=settings) as three, ExitStack() as stack:
        name = make_topic(three.bootstrap, "moved", PARTITIONS, 3)
        begin_early(three.address(1), name)
        members = [
            stack.enter_context(Member(share(three.bootstrap, group=name, topic=name, how="accept"))) for _ in range(2)
        ]
        outputs = partial(outputs_of, *members)
        written = write(three.bootstrap, name)
        until(lambda: len(stored(*members)) > 0, outputs)
        for turn, broker_id in enumerate((2, 3, 1), 1):
            three.stop_broker(broker_id)
            written |= write(three.bootstrap, name, first=turn * PER_PARTITION)
            until(lambda: set(got(*members)) == written and all_once_or_unknown(written, *members), outputs)
            three.start_broker(broker_id)
        for member in members:
            member.leave()


def test_a_delete_moves_the_start(share: Share, quick_broker: LowtideProcess) -> None:
    """Deleted records are not delivered, also those that a member has acquired before."""
    name, bootstrap = make_topic(quick_broker.bootstrap, f"share-{next(_numbers)}", 1), quick_broker.bootstrap
    begin_early(bootstrap, name)
    written = write(bootstrap, name, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    with Member(share(bootstrap, group=name, topic=name, how="hold")) as holder:
        until(lambda: len(got(holder)) >= PER_POLL, partial(outputs_of, holder))
        kept = PER_PARTITION - 5
        [deleted] = admin.delete_records([TopicPartition(name, 0, kept)]).values()
        assert deleted.result(load.DEADLINE_S).low_watermark == kept
        with Member(share(bootstrap, group=name, topic=name, how="accept")) as other:
            left = {record for record in written if record[1] >= kept}
            until(lambda: all_once(left, other), partial(outputs_of, holder, other))
            assert set(got(other)) == left
            other.leave()
