"""Clusters are restored from before erasures, and used again; then the erasures of the ledger's export are replayed.

After it no erased record is read or in a file, also not decompressed. All other records are there, also those that have
the offsets of erased ones now.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from lowtide.testing.cluster import LowtideCluster
from tests.clients.command_lines import answer, run
from tests.clients.replica_files import files_with

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("ROUNDS", "1"))
SEED = int(os.environ.get("SEED", "1"))
BROKERS = int(os.environ.get("BROKERS", "3"))
PARTITIONS, PERSONS = 2, 6
LIMIT_S = 60.0


class RestoredCluster:
    """One cluster, its backup, and the records that are to be read. Values say who and when: `-early-4-000017-`."""

    def __init__(self, directory: Path, choice: random.Random) -> None:
        self.data, self.copy, self.export = directory / "data", directory / "copy", directory / "ledger.jsonl"
        self.live: list[bytes] = []
        self._choice = choice
        self._config = {"log.roll.ms": str(choice.choice([300, 60_000]))}
        self._number = 0

    @contextmanager
    def running(self) -> Iterator[LowtideCluster]:
        self.data.mkdir(exist_ok=True)
        with LowtideCluster(brokers=BROKERS, config=self._config, data_directory=str(self.data)) as cluster:
            yield cluster

    def write(self, cluster: LowtideCluster, time_of: str, count: int) -> list[bytes]:
        """Writes records of random persons to random partitions; returns their values."""
        codec = self._choice.choice(["none", "lz4", "zstd"])
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 5})
        values = []
        for _ in range(count):
            person = self._choice.randrange(PERSONS)
            values.append(b"-%s-%d-%06d-" % (time_of.encode(), person, self._number))
            self._number += 1
            producer.produce("people", values[-1], b"%d" % person, partition=self._choice.randrange(PARTITIONS))
            if self._choice.random() < 0.1:
                producer.flush(LIMIT_S)
        assert producer.flush(LIMIT_S) == 0
        return values

    def check(self, cluster: LowtideCluster) -> None:
        """Waits until the live records are read, and expects that no read returns anything else.

        After a start the high watermark is older for a moment, and reads end there.
        """
        deadline, expected = time.monotonic() + LIMIT_S, sorted(self.live)
        while (found := self._read(cluster)) != expected:
            assert set(found) <= set(expected), set(found) - set(expected)
            assert time.monotonic() < deadline, (len(found), len(expected))
            time.sleep(0.1)

    def _read(self, cluster: LowtideCluster) -> list[bytes]:
        """Returns the values of all partitions up to their ends, sorted."""
        settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **settings})
        consumer.assign([TopicPartition("people", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        values: list[bytes] = []
        ended, deadline = set[int](), time.monotonic() + LIMIT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline, len(values)
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                values.append(message.value() or b"")
            else:
                ended.add(message.partition() or 0)
        consumer.close()
        return sorted(values)

    def back_up(self) -> None:
        shutil.copytree(self.data, self.copy)

    def restore(self) -> None:
        shutil.rmtree(self.data)
        self.copy.rename(self.data)


def replay(cluster: LowtideCluster, export: Path) -> list[dict[str, object]]:
    replayed = answer("erasures", "replay", "--from", export, "--yes", bootstrap=cluster.bootstrap)
    partitions: list[dict[str, object]] = replayed["partitions"]
    for each in partitions:
        assert (each["erased_by"], each["not_erased_by"], each["error"]) == (cluster.broker_ids, [], None), each
    return partitions


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_a_cluster_is_restored_from_before_erasures(seed: int, tmp_path: Path) -> None:
    choice = random.Random(seed)
    here = RestoredCluster(tmp_path, choice)
    persons = choice.sample(range(PERSONS), choice.randint(1, 3))
    with here.running() as cluster:
        words = ("topics", "create", "people", "--partitions", PARTITIONS, "--replication-factor", BROKERS)
        run(*words, bootstrap=cluster.bootstrap)
        here.live = here.write(cluster, "early", choice.randint(50, 600))
    here.back_up()
    with here.running() as cluster:
        here.write(cluster, "lost", choice.randint(1, 200))
        for person in persons:
            key_file = tmp_path / "key"
            key_file.write_text(f"{person}\n")
            words = ("records", "erase", "people", "--keys-from", key_file, "--yes")
            run(*words, bootstrap=cluster.bootstrap)
        here.export.write_text(run("erasures", "export", bootstrap=cluster.bootstrap).stdout)
    here.restore()
    with here.running() as cluster:
        here.check(cluster)  # The erased records are back.
        here.live += here.write(cluster, "late", choice.randint(0, 300))
        erased = tuple(b"-early-%d-" % person for person in persons)
        first = replay(cluster, here.export)
        here.live = [each for each in here.live if not each.startswith(erased)]
        here.check(cluster)
        for marker in erased:
            assert files_with(cluster, marker, "people-*") == []
        assert replay(cluster, here.export) == first, "a repeated replay finds what it has done"
        here.check(cluster)
    with here.running() as cluster:
        here.check(cluster)
        for marker in erased:
            assert files_with(cluster, marker, "people-*") == []
