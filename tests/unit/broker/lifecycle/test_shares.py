"""What each broker of `lowtide serve --processes` has of one configuration, and which starts are refused."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, load_config
from lowtide.broker.lifecycle.supervisor.shares import BrokerShare, check_others, shares
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.errors import RefusedDirectoryError

FACTORS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)


def shared(count: int, *, is_alone: bool = True, **settings: str) -> list[BrokerShare]:
    settings = {"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT", **settings}
    config = load_config(
        settings={name.replace("_", "."): text for name, text in settings.items()}, host_name="machine"
    )
    return shares(config, count, host_name="machine", is_alone=is_alone)


def test_ids_ports_and_folders_follow_those_of_the_first() -> None:
    found = shared(
        3,
        node_id="4",
        listeners="PLAINTEXT://0.0.0.0:9092,OTHER://:0",
        advertised_listeners="PLAINTEXT://here:19092",
        log_dirs="/a,/b",
        http_listeners="http://127.0.0.1:9644",
    )
    configs = [load_config(given=share.given, host_name="machine") for share in found]
    assert [share.node_id for share in found] == [config.node_id for config in configs] == [4, 5, 6]
    assert [[each.text for each in config.listeners] for config in configs] == [
        [f"PLAINTEXT://0.0.0.0:{port}", "OTHER://:0"] for port in (9092, 9093, 9094)
    ]
    assert [[each.text for each in config.advertised_listeners] for config in configs] == [
        [f"PLAINTEXT://here:{port}"] for port in (19092, 19093, 19094)
    ]
    assert [config.log_dirs for config in configs] == [
        ("/a", "/b"),
        ("/a/lowtide-processes/5", "/b/lowtide-processes/5"),
        ("/a/lowtide-processes/6", "/b/lowtide-processes/6"),
    ]
    assert [len(config.http_listeners) for config in configs] == [1, 0, 0]


def test_older_names_are_replaced() -> None:
    """`broker.id` and `log.dir` would contradict the names that the shares use."""
    first, second = (load_config(given=share.given) for share in shared(2, broker_id="7", node_id="7", log_dir="/d"))
    assert (first.node_id, first.log_dirs) == (7, ("/d",))
    assert (second.node_id, second.log_dirs) == (8, ("/d/lowtide-processes/8",))


def test_the_machine_is_the_rack_unless_one_is_configured() -> None:
    assert {load_config(given=share.given).broker_rack for share in shared(2)} == {"machine"}
    assert {load_config(given=share.given).broker_rack for share in shared(2, broker_rack="r")} == {"r"}


def test_internal_topics_have_one_replica_where_one_machine_is_all() -> None:
    """What is configured holds; with an etcd there may be other machines, and Kafka's defaults hold."""
    given = shared(2, offsets_topic_replication_factor="2")[1].given
    assert [given[name].text for name in FACTORS] == ["2", "1", "1"]
    assert not set(FACTORS) & set(shared(2, is_alone=False)[1].given)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"listeners": "PLAINTEXT://:65535"},
            "the listener PLAINTEXT of broker 1 would have port 65536, the last one is 65535",
        ),
        (
            {"listeners": "PLAINTEXT://:9092,OTHER://:9093"},
            "of broker 1 would have port 9093, as the listener OTHER of broker 0",
        ),
        (
            {"listeners": "PLAINTEXT://:9643", "http_listeners": "http://:9644"},
            "would have port 9644, as the HTTP listener http://:9644",
        ),
    ],
)
def test_ports_that_there_are_not_are_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shared(2, **settings)


def test_one_port_of_two_addresses_is_one_brokers() -> None:
    """An IPv4 and an IPv6 address may have the same (KIP-797)."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:9092,OTHER://[::1]:9092"}
    assert shared(2, **settings)[1].given["listeners"].text == "PLAINTEXT://127.0.0.1:9093,OTHER://[::1]:9093"


def folder_with(*paths: str) -> MemoryFileSystem:
    filesystem = MemoryFileSystem()
    for path in paths:
        filesystem.make_directories(path)
    return filesystem


def test_fewer_brokers_than_have_partitions_are_refused() -> None:
    """In any log directory; the sentence has what to do, with the broker that can go first."""
    config = load_config(settings={"log.dirs": "/a,/b", "node.id": "1"})
    folders = folder_with(
        "/a/t-0", "/a/lowtide-processes/2/t-1", "/b/lowtide-processes/4/u-0", "/a/lowtide-processes/4/u-1"
    )
    with pytest.raises(RefusedDirectoryError) as refused:
        check_others(folders, config, 1)
    assert str(refused.value) == (
        "/a/lowtide-processes: broker 4 has 2 partition(s) here (u-1, u-0), as brokers 2 have others, and only broker "
        "1 is to be started; start with --processes 4, give them to one that stays with `lowtide cluster replace 4 1`, "
        "stop, and start with fewer then"
    )
    with pytest.raises(RefusedDirectoryError, match=r"and brokers 1 to 3 are to be started"):
        check_others(folders, config, 3)
    check_others(folders, config, 4)


def test_what_holds_no_partitions_keeps_no_start_up() -> None:
    """Such as the folder of a broker whose partitions were moved away, or a folder that is not ours."""
    config = load_config(settings={"log.dirs": "/a", "node.id": "1"})
    check_others(folder_with("/a/lowtide-processes/2/x", "/a/lowtide-processes/old/t-1"), config, 1)
    check_others(MemoryFileSystem(), config, 1)


def test_a_folder_of_an_id_before_the_first_is_refused() -> None:
    """It is no broker's that would be started."""
    config = load_config(settings={"log.dirs": "/a", "node.id": "5"})
    with pytest.raises(RefusedDirectoryError, match="broker 3 has 1 partition"):
        check_others(folder_with("/a/lowtide-processes/3/t-1"), config, 2)
