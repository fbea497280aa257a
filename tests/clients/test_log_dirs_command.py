"""`lowtide log-dirs`: the directories of real brokers, and partitions moved between them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from lowtide.admin import BlockingAdminClient, ConfigChange, ConfigResource, ConfigResourceType, NewTopic
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class World:
    """A broker with two log directories, and a topic of two partitions with a megabyte each."""

    def __init__(self, cluster: LowtideCluster, disks: list[str]) -> None:
        self.bootstrap, self.disks = cluster.bootstrap, disks

    def run(self, *words: object, code: int = 0) -> tuple[str, str]:
        ran = run("log-dirs", *words, bootstrap=self.bootstrap, code=code)
        return ran.stdout, ran.stderr

    def answer(self, *words: object, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--output", "json", code=code)[0])

    def places(self) -> dict[int, str]:
        """The directory of each partition's replica."""
        found = self.answer("describe", "--topic", "flights")["log_dirs"]
        rows = {(row["partition"], row["moving_here"]): each["path"] for each in found for row in each["partitions"]}
        return {number: path for (number, is_moving), path in rows.items() if not is_moving}

    def copies(self) -> set[int]:
        found = self.answer("describe", "--topic", "flights")["log_dirs"]
        return {row["partition"] for each in found for row in each["partitions"] if row["moving_here"]}


@contextmanager
def world_in(folder: Path) -> Iterator[World]:
    disks = [str(folder / "one"), str(folder / "two")]
    with LowtideCluster(config={"log.dirs": ",".join(disks)}) as cluster:
        with BlockingAdminClient(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name="flights", partitions=2)])
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(200):
            producer.produce("flights", b"x" * 10_000, partition=number % 2)
        assert producer.flush(30) == 0
        yield World(cluster, disks)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def unmoved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The broker of tests that move nothing."""
    with world_in(tmp_path_factory.mktemp("unmoved")) as made:
        yield made


def test_partitions_are_moved_and_waited_for(world: World) -> None:
    one, two = world.disks
    before = world.places()
    assert set(before.values()) == {one, two}
    out, err = world.run("move", "flights", "--to", two)
    assert sorted(out.splitlines()) == [f"flights-0 of broker 0: is in {two}", f"flights-1 of broker 0: is in {two}"]
    assert err == ""
    assert world.places() == {0: two, 1: two}
    rows = world.answer("move", "flights:1", "--to", f"{one}/", "--broker", 0)["results"]
    assert [(row["from"], row["to"], row["partition"], row["broker"], row["error"]) for row in rows] == [
        (two, one, 1, 0, None)
    ]
    assert rows[0]["bytes"] > 1_000_000
    assert world.places() == {0: two, 1: one}


def test_moves_are_begun_without_waiting(world: World) -> None:
    """A rate of one byte a second: they are under way as long as the test looks, and end where the partition is."""
    target = next(path for path in world.disks if path != world.places()[0])
    with BlockingAdminClient(world.bootstrap) as admin:
        admin.alter_configs({ConfigResource(ConfigResourceType.BROKER, "0"): [ConfigChange(RATE, "1")]})
    out, _ = world.run("move", "flights:0", "--to", target, "--no-wait")
    assert out == "flights-0 of broker 0: is being moved\n"
    assert world.copies() == {0}
    assert f"{target} (moving here)" in world.run("--partitions")[0]
    world.run("move", "flights:0", "--to", world.places()[0])
    assert world.copies() == set()


@pytest.mark.slow
def test_the_old_spelling_describes(unmoved: World) -> None:

    def sizes(*words: str) -> list[tuple[str, list[dict[str, Any]]]]:
        return [(each["path"], each["partitions"]) for each in unmoved.answer(*words)["log_dirs"]]

    assert sizes() == sizes("describe")
    assert sizes("--topic", "flights") == sizes("describe", "-t", "flights")
    assert unmoved.run("--partitions")[0] == unmoved.run("describe", "-p")[0]


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (
            ("flights:0", "--to", "/no/such"),
            2,
            "--to /no/such is invalid for flights-0: it must be a log directory of its broker",
        ),
        (("flights:7", "--to", "/x"), 2, "topic flights has no partition 7: it has"),
        (("none", "--to", "/x"), 2, "there is no topic none, or you may not describe it."),
        (("flights:x", "--to", "/x"), 2, "flights:x"),
        (("flights",), 2, "Missing option '--to'"),
        (("--to", "/x"), 2, "Missing argument"),
        (
            ("flights", "--to", "/x", "--broker", "9", "--timeout", "1"),
            1,
            "no log directory of broker 9 has a replica of flights-0",
        ),
    ],
)
def test_errors_are_one_sentence(unmoved: World, words: tuple[str, ...], code: int, part: str) -> None:
    out, err = unmoved.run("move", *words, code=code)
    assert out == ""
    assert part in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_each_broker_with_a_replica_and_the_directory_moves_it(tmp_path: Path) -> None:
    """Brokers in one process have separate directories; on separate machines they would share names."""
    with LowtideCluster(brokers=2, data_directory=tmp_path) as cluster, BlockingAdminClient(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name="t", partitions=1, replication_factor=2)])
        paths = {broker: next(iter(found)) for broker, found in admin.describe_log_dirs().items()}
        ran = run("log-dirs", "move", "t", "--to", paths[2], bootstrap=cluster.bootstrap)
        assert ran.stdout == f"t-0 of broker 2: is in {paths[2]}\n"
