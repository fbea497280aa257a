"""AlterReplicaLogDirs as clients see it: what is answered, and what DescribeLogDirs then shows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide.admin import BlockingAdminClient, NewTopic, TopicPartition
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.protocol.errors import ErrorCode
from lowtide.testing.cluster import LowtideCluster

LIMIT_S = 60.0
KEY = TopicPartition("moved", 0)


@pytest.fixture
def disks(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "one"), str(tmp_path / "two")]


@pytest.fixture
def client(disks: list[str]) -> Iterator[BlockingAdminClient]:
    with (
        LowtideCluster(config={"log.dirs": ",".join(disks)}) as running,
        BlockingAdminClient(running.bootstrap) as admin,
    ):
        assert admin.create_topics([NewTopic(name="moved", partitions=1)])["moved"] is not None
        yield admin


def broker_of(client: BlockingAdminClient) -> int:
    return next(iter(client.describe_log_dirs()))


def places(client: BlockingAdminClient, key: TopicPartition) -> dict[str, bool]:
    """Whether each directory has the future log, by path."""
    [found] = client.describe_log_dirs().values()
    assert not isinstance(found, AdminError)
    return {path: each.replicas[key].is_future for path, each in found.items() if key in each.replicas}


def code(error: AdminError | None) -> int:
    assert isinstance(error, BrokerAnsweredError), error
    return int(error.code)


def test_a_move_is_begun_shown_and_done(client: BlockingAdminClient, disks: list[str]) -> None:
    broker = broker_of(client)
    [here] = places(client, KEY)
    target = next(path for path in disks if path != here)
    assert client.alter_replica_log_dirs({(broker, KEY): target}) == {(broker, KEY): None}
    deadline = time.monotonic() + LIMIT_S
    while places(client, KEY) != {target: False}:
        assert time.monotonic() < deadline, places(client, KEY)
        time.sleep(0.02)
    assert client.alter_replica_log_dirs({(broker, KEY): target}) == {(broker, KEY): None}, "it is there"


def test_what_is_refused(client: BlockingAdminClient, disks: list[str]) -> None:
    broker = broker_of(client)
    long = TopicPartition("a" * 230, 0)  # The name of the copy's folder would be too long.
    wanted = {(broker, KEY): "/no/such/directory", (broker, long): disks[1]}
    found = client.alter_replica_log_dirs(wanted)
    assert [code(found[place]) for place in wanted] == [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_partition_that_is_not_there_yet_is_made_where_it_is_wanted(
    client: BlockingAdminClient, disks: list[str]
) -> None:
    broker = broker_of(client)
    wanted = {(broker, TopicPartition("later", number)): disks[1] for number in range(3)}
    client.alter_replica_log_dirs(wanted, timeout=5)
    client.create_topics([NewTopic(name="later", partitions=3)])
    assert [places(client, key) for _, key in wanted] == [{disks[1]: False}] * 3
