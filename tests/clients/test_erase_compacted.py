"""Erasing a person from a compacted topic, whose replicas differ: no broker keeps a version that another one erased."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

from lowtide.admin import BlockingAdminClient, NewTopic, OffsetSpec, PartitionErasure, TopicPartition
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run
from .replica_files import files_with

PERSON, OLD, NEW = b"person-4711", b"old letter of 4711", b"new letter of 4711"
LIMIT_S = 60.0
ALL = (1, 2, 3)
RESTING = 3
"""The broker that compacts nothing."""
PAUSE = "log.cleaner.backoff.ms"
CONFIGS = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.0",
    "file.delete.delay.ms": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    config = {
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        PAUSE: "100",
        "replica.lag.time.max.ms": "5000",
    }
    with LowtideCluster(brokers=3, config=config) as cluster:
        pause = ("-s", f"{PAUSE}=1000000000")
        run("configs", "alter", "--broker", RESTING, *pause, bootstrap=cluster.bootstrap)
        yield cluster


@pytest.fixture(scope="module")
def admin(cluster: LowtideCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.bootstrap) as admin:
        yield admin


def until_true(what: object, check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def brokers_with(cluster: LowtideCluster, marker: bytes, topic: str) -> set[str]:
    """Returns the folders of the brokers that have these bytes."""
    return {Path(each).parts[0] for each in files_with(cluster, marker, f"{topic}-*")}


def produce(cluster: LowtideCluster, topic: str, *letters: bytes) -> None:
    """Writes the person's letters, each between enough others to fill a segment."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "none", "batch.num.messages": 10})
    for number, letter in enumerate((*letters, b"")):
        for other in range(100):
            producer.produce(topic, bytes(400), b"other-%d-%d" % (number, other))
        if letter:
            producer.produce(topic, letter, PERSON)
    assert producer.flush(30) == 0


def create(admin: BlockingAdminClient, topic: str, replicas: tuple[int, ...] = ALL) -> None:
    """Creates a topic with one partition, which broker 1 leads."""
    new = NewTopic(name=topic, assignments={0: replicas}, configs=CONFIGS)
    created = admin.create_topics([new])[topic]
    assert not isinstance(created, Exception), created
    until_true("it has a leader", lambda: not isinstance(admin.describe_topics([topic])[topic], Exception))


def erased(admin: BlockingAdminClient, topic: str, erasure_id: UUID | None = None) -> PartitionErasure:
    key = TopicPartition(topic, 0)
    result = admin.erase_records([key], keys=[PERSON], erasure_id=erasure_id, timeout=LIMIT_S)[key]
    assert isinstance(result, PartitionErasure), result
    return result


def test_an_old_version_on_a_follower_is_erased_too(cluster: LowtideCluster, admin: BlockingAdminClient) -> None:
    """Protects a person whose old letter the leader has compacted away, but a follower has not."""
    topic = "compacted-differently"
    create(admin, topic)
    produce(cluster, topic, OLD, NEW)
    until_true("two brokers compact", lambda: len(brokers_with(cluster, OLD, topic)) == 1)
    result = erased(admin, topic)
    assert (result.erased_by, result.not_erased_by) == (ALL, {})
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    assert files_with(cluster, OLD, f"{topic}-*") == []
    assert result.count == 2
    again = erased(admin, topic)
    assert (again.erased_by, again.not_erased_by, again.count) == (ALL, {}, 0)


@pytest.mark.slow
def test_a_replica_that_was_away_starts_over(cluster: LowtideCluster, admin: BlockingAdminClient) -> None:
    """Protects a person whose old letter only a broker has that was away when the others searched."""
    topic = "compacted-away"
    create(admin, topic)
    produce(cluster, topic, OLD)
    until_true("all have it", lambda: len(brokers_with(cluster, OLD, topic)) == len(ALL))
    cluster.stop_broker(RESTING)
    try:
        produce(cluster, topic, NEW)
        until_true("the others compact", lambda: len(brokers_with(cluster, OLD, topic)) == 1)
        result = erased(admin, topic)
        assert (result.erased_by, list(result.not_erased_by)) == (
            tuple(each for each in ALL if each != RESTING),
            [RESTING],
        )
        assert result.count == 1
        assert len(brokers_with(cluster, PERSON, topic)) == 1
        size = cluster.log_size
    finally:
        cluster.start_broker(RESTING)
    until_true("it is clean", lambda: erased(admin, topic).not_erased_by == {})
    assert "came without a search of this replica" in cluster.log(size)
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    assert files_with(cluster, OLD, f"{topic}-*") == []


def test_an_erasure_without_records_reaches_a_replica_that_was_away(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    """Protects a person of whom only a broker that is away has a letter: all others find nothing."""
    topic = "compacted-nothing-found"
    create(admin, topic)
    produce(cluster, topic, OLD)
    until_true("all have it", lambda: len(brokers_with(cluster, OLD, topic)) == len(ALL))
    cluster.stop_broker(RESTING)
    try:
        run("configs", "alter", "--topic", topic, "-s", "delete.retention.ms=0", bootstrap=cluster.bootstrap)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce(topic, None, PERSON)
        assert producer.flush(30) == 0
        forgotten = partial(produce_until_forgotten, cluster, topic)
        until_true("the others have forgotten them", forgotten)
        result = erased(admin, topic)
        assert (result.count, list(result.not_erased_by)) == (0, [RESTING])
    finally:
        cluster.start_broker(RESTING)
    until_true("it is clean", lambda: erased(admin, topic).not_erased_by == {})
    assert files_with(cluster, PERSON, f"{topic}-*") == []


def produce_until_forgotten(cluster: LowtideCluster, topic: str, left: int = 1) -> bool:
    """Writes other letters. Returns whether only `left` brokers still have one of the person's, or a tombstone."""
    produce(cluster, topic)
    return len(brokers_with(cluster, PERSON, topic)) == left


@pytest.mark.slow
def test_an_erasure_without_records_reaches_a_volume_that_is_put_back(
    cluster: LowtideCluster, admin: BlockingAdminClient, tmp_path: Path
) -> None:
    """Protects a person of whom no broker has a letter when it is erased, but an old copy of a volume has."""
    topic, returning, replicas = "compacted-put-back", 2, (1, 2)
    create(admin, topic, replicas)
    produce(cluster, topic, OLD)
    until_true("both have it", lambda: len(brokers_with(cluster, OLD, topic)) == len(replicas))
    volume = Path(cluster.data_directory) / f"broker-{returning}"
    cluster.stop_broker(returning)
    shutil.copytree(volume, tmp_path / "volume")
    cluster.start_broker(returning)
    run("configs", "alter", "--topic", topic, "-s", "delete.retention.ms=0", bootstrap=cluster.bootstrap)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, None, PERSON)
    assert producer.flush(30) == 0
    until_true("both have forgotten them", partial(produce_until_forgotten, cluster, topic, left=0))
    erasure_id, ends = uuid4(), []
    for _ in range(2):
        result = erased(admin, topic, erasure_id)
        assert (result.count, result.erased_by, result.not_erased_by) == (0, replicas, {})
        ends.append(admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.LATEST}))
    assert ends[0] == ends[1], "a repeated request adds no erasure"
    cluster.stop_broker(returning)
    shutil.rmtree(volume)
    shutil.copytree(tmp_path / "volume", volume)
    cluster.start_broker(returning)
    until_true("it starts over", lambda: files_with(cluster, PERSON, f"{topic}-*") == [])


def test_a_tombstone_follows_if_it_is_wanted(cluster: LowtideCluster, admin: BlockingAdminClient) -> None:
    """Protects tables that were made of the topic; a later run erases the tombstone."""
    topic = "compacted-tombstone"
    create(admin, topic)
    produce(cluster, topic, OLD)
    words = ("records", "erase", topic, "--key", PERSON.decode(), "--yes")
    ran = run(*words, "--tombstone", bootstrap=cluster.bootstrap)
    assert "1 tombstone written" in ran.stderr
    assert (files_with(cluster, OLD, f"{topic}-*"), len(brokers_with(cluster, PERSON, topic))) == ([], len(ALL))
    run(*words, bootstrap=cluster.bootstrap)
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    run("records", "erase", topic, "--header", "a=b", "--tombstone", "--yes", bootstrap=cluster.bootstrap, code=2)


FIRST, NAMED = b"first letter of 4711", (100, 201, 302)
"""The offsets of the person's letters."""


def erase_offset(cluster: LowtideCluster, topic: str, offset: int, *options: str, code: int = 0) -> str:
    words = ("records", "erase", topic, "--offsets", f"0:{offset}", "--yes", *options)
    return run(*words, bootstrap=cluster.bootstrap, code=code).stdout


def test_the_newest_version_is_refused_unless_it_is_forced(cluster: LowtideCluster, admin: BlockingAdminClient) -> None:
    """Protects readers from an older record of a key, and tables from losing a key by mistake."""
    topic = "compacted-newest"
    create(admin, topic)
    produce(cluster, topic, OLD, NEW)
    until_true("two brokers compact", lambda: len(brokers_with(cluster, OLD, topic)) == 1)
    told = run("records", "erase", topic, "--offsets", f"0:{NAMED[1]}", "--dry-run", bootstrap=cluster.bootstrap).stdout
    assert f"{topic}:0: {NAMED[1]} is the newest version of its key. Without --force, nothing is erased there." in told
    assert f"Offset {NAMED[1]} is the newest version of its key" in erase_offset(cluster, topic, NAMED[1], code=1)
    assert len(brokers_with(cluster, NEW, topic)) == len(ALL)
    erase_offset(cluster, topic, NAMED[1], "--force")
    assert files_with(cluster, PERSON, f"{topic}-*") == []
    run("records", "erase", topic, "--key", "x", "--force", "--yes", bootstrap=cluster.bootstrap, code=2)


def test_older_versions_go_with_a_named_one_that_the_leader_lacks(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    """Protects a person whose letters only a follower has: nobody else knows the key of the named one."""
    topic = "compacted-older"
    create(admin, topic)
    produce(cluster, topic, FIRST, OLD, NEW)
    until_true("two brokers compact", lambda: len(brokers_with(cluster, OLD, topic)) == 1)
    until_true("they remove what they replaced", lambda: len(brokers_with(cluster, FIRST, topic)) == 1)
    erase_offset(cluster, topic, NAMED[1])
    assert files_with(cluster, OLD, f"{topic}-*") == []
    assert files_with(cluster, FIRST, f"{topic}-*") == []
    assert len(brokers_with(cluster, NEW, topic)) == len(ALL)


def test_a_header_takes_the_newest_version_and_all_before_it(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    """Protects readers from an older record without the header, which would be the current one again."""
    topic = "compacted-header"
    create(admin, topic)
    produce(cluster, topic, OLD)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, NEW, PERSON, headers={"who": b"4711"})
    assert producer.flush(30) == 0
    words = ("records", "erase", topic, "--header", "who=4711", "--yes")
    assert "Not erased" not in run(*words, bootstrap=cluster.bootstrap).stderr
    assert files_with(cluster, PERSON, f"{topic}-*") == []


def test_records_without_a_key_of_a_formerly_compacted_topic_go_alone(
    cluster: LowtideCluster, admin: BlockingAdminClient
) -> None:
    """Protects the others that have no key either: they are no versions of it."""
    topic = "compacted-formerly"
    create(admin, topic)
    produce(cluster, topic, OLD, NEW)
    until_true("two brokers compact", lambda: len(brokers_with(cluster, OLD, topic)) == 1)
    run("configs", "alter", "--topic", topic, "-s", "cleanup.policy=delete", bootstrap=cluster.bootstrap)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    places: list[int] = []
    for letter in (FIRST, b"other without a key"):
        until_true("the brokers know the new policy", partial(written, producer, topic, letter, places))
    erase_offset(cluster, topic, places[0])
    assert files_with(cluster, FIRST, f"{topic}-*") == []
    assert len(brokers_with(cluster, b"other without a key", topic)) == len(ALL)
    assert len(brokers_with(cluster, NEW, topic)) == len(ALL)


def written(producer: Producer, topic: str, letter: bytes, places: list[int]) -> bool:
    """Writes a letter without a key. Returns whether it was taken."""
    count = len(places)
    producer.produce(topic, letter, on_delivery=lambda error, message: error or places.append(message.offset()))
    return producer.flush(30) == 0 and len(places) > count
