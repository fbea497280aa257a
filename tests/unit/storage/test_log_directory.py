"""The owner of a log directory, and each reason to refuse a directory, in one sentence."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest

from lowtide.protocol.types import ZERO_TOPIC_ID, TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem, SimulatedCrashError
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    META_PROPERTIES,
    PARTITION_METADATA,
    encode_partition_metadata,
)
from lowtide.storage.errors import StorageError
from lowtide.storage.folder_names import deleted_folder_name, parse_folder_name
from lowtide.storage.log_directory import (
    REGISTRATION_COUNTER,
    BrokerIdentity,
    LogDirectory,
    deleted_partition,
    list_directory,
)

PATH = "/disk/logs"
IDENTITY = BrokerIdentity(cluster_id="our-cluster", node_id=1)


def opened(filesystem: MemoryFileSystem, identity: BrokerIdentity = IDENTITY) -> LogDirectory:
    return LogDirectory.open(filesystem, PATH, identity, Random(5))


def test_a_new_directory_is_created_and_marked_as_ours() -> None:
    filesystem = MemoryFileSystem()
    directory = opened(filesystem)
    assert not directory.stopped_cleanly
    assert directory.is_online
    properties = directory.properties
    filesystem.power_cut()
    again = opened(filesystem)
    assert again.properties == properties, "durable at once"
    assert properties.directory_id != ZERO_TOPIC_ID


def test_only_a_directory_that_was_in_use_when_the_power_went_may_lack_records() -> None:
    """A killed process loses nothing that it wrote; until the cluster knows of a power cut, each start says so."""
    filesystem = MemoryFileSystem()

    def start() -> LogDirectory:
        directory = opened(filesystem)
        directory.begin_use()
        return directory

    directory = start()
    assert not directory.may_lack_records, "it is new"
    directory.note_page_cache()
    filesystem.crash_process()
    assert not start().may_lack_records
    filesystem.power_cut()
    assert start().may_lack_records
    filesystem.crash_process()
    directory = start()
    assert directory.may_lack_records, "it died before it could say so"
    directory.note_page_cache()
    filesystem.crash_process()
    assert not start().may_lack_records
    filesystem.replace_file(f"{PATH}/{CLEAN_SHUTDOWN_MARKER}", b"")
    filesystem.power_cut()
    assert not start().may_lack_records, "it had stopped cleanly"


def test_where_the_machine_has_no_name_for_its_memory_each_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = MemoryFileSystem()
    monkeypatch.setattr(MemoryFileSystem, "page_cache_id", lambda _self: None)
    opened(filesystem).note_page_cache()
    filesystem.crash_process()
    assert opened(filesystem).may_lack_records


def test_a_directory_has_one_user_at_a_time() -> None:
    filesystem = MemoryFileSystem()
    first = opened(filesystem)
    with pytest.raises(StorageError, match=f"{PATH}: the log directory is in use by another broker"):
        opened(filesystem)
    first.release()
    opened(filesystem).release()


@pytest.mark.parametrize(
    ("identity", "sentence"),
    [
        (
            BrokerIdentity(cluster_id="theirs", node_id=1),
            "the log directory belongs to cluster 'our-cluster' .*, this broker is of 'theirs'",
        ),
        (
            BrokerIdentity(cluster_id="our-cluster", node_id=2),
            "the log directory belongs to node 1 .*, this broker is node 2",
        ),
    ],
)
def test_a_directory_of_another_owner_is_refused_and_left_free(identity: BrokerIdentity, sentence: str) -> None:
    filesystem = MemoryFileSystem()
    opened(filesystem).release()
    with pytest.raises(StorageError, match=sentence):
        opened(filesystem, identity)
    opened(filesystem)


def test_partitions_without_an_owner_are_refused() -> None:
    """A missing meta.properties may be the only sign that a wrong disk is mounted."""
    filesystem = MemoryFileSystem()
    opened(filesystem).release()
    filesystem.make_directories(f"{PATH}/flights-0")
    filesystem.unlink(f"{PATH}/{META_PROPERTIES}")
    with pytest.raises(StorageError, match=r"holds partitions \(flights-0\) but meta.properties.* is missing or empty"):
        opened(filesystem)


def test_a_damaged_meta_properties_is_named() -> None:
    filesystem = MemoryFileSystem()
    opened(filesystem).release()
    filesystem.write_bytes(f"{PATH}/{META_PROPERTIES}", b"version=1\nnode.id=x\n")
    with pytest.raises(StorageError, match=f"{PATH}/{META_PROPERTIES}: node.id is 'x'"):
        opened(filesystem)


@pytest.mark.parametrize("operation", ["make_directory", "create", "write", "unlink"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_directory_that_cannot_be_written_is_refused(operation: Any, number: int) -> None:
    filesystem = MemoryFileSystem()
    if operation == "unlink":
        opened(filesystem).release()
        filesystem.write_bytes(f"{PATH}/{CLEAN_SHUTDOWN_MARKER}", b"")
    filesystem.fail_next(operation, number)
    with pytest.raises(StorageError, match=f"{PATH}: the log directory can't be written"):
        opened(filesystem)
    opened(filesystem)


def test_a_directory_that_turned_read_only_is_noticed_though_nothing_is_to_be_written() -> None:
    filesystem = MemoryFileSystem()
    opened(filesystem).release()
    filesystem.fail_next("create", errno.EROFS)
    with pytest.raises(StorageError, match="can't be written"):
        opened(filesystem)


def test_a_path_that_is_a_file_is_refused() -> None:
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/disk")
    filesystem.write_bytes(PATH, b"")
    with pytest.raises(StorageError, match="the log directory is a file"):
        opened(filesystem)


def test_the_marker_of_a_clean_stop_counts_once_even_after_a_power_cut() -> None:
    """A crash after the start must not find the marker again, otherwise the logs would not be checked."""
    for seed in range(10):
        filesystem = MemoryFileSystem(Random(seed))
        opened(filesystem).release()
        filesystem.replace_file(f"{PATH}/{CLEAN_SHUTDOWN_MARKER}", b"{}")
        directory = opened(filesystem)
        assert directory.stopped_cleanly
        directory.begin_use()
        filesystem.power_cut()
        assert not opened(filesystem).stopped_cleanly


def test_a_crash_at_any_step_of_a_first_open_leaves_a_directory_to_be_opened() -> None:
    step, done = 0, False
    while not done:
        step += 1
        filesystem = MemoryFileSystem(Random(step))
        filesystem.crash_at = step
        try:
            opened(filesystem)
            done = True
        except SimulatedCrashError:
            pass
        filesystem.power_cut()
        opened(filesystem)
    assert step > 5


def test_the_registration_counter_is_durable_and_its_absence_is_reported() -> None:
    filesystem = MemoryFileSystem()
    directory = opened(filesystem)
    assert directory.registration() is None
    directory.write_registration(7)
    filesystem.power_cut()
    directory = opened(filesystem)
    assert directory.registration() == 7
    filesystem.write_bytes(f"{PATH}/{REGISTRATION_COUNTER}", b"7x")
    assert directory.registration() is None, "an unreadable counter is stale too"


def test_a_failure_is_noted_once() -> None:
    directory = opened(MemoryFileSystem())
    assert directory.fail("the disk is gone")
    assert not directory.fail("again")
    assert (directory.is_online, directory.offline_reason) == (False, "the disk is gone")


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("flights-0", ("flights", 0)),
        ("my.topic_x-1-12", ("my.topic_x-1", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("a-2147483647", ("a", 2147483647)),
        ("a-2147483648", None),
        ("a-007", None),
        ("a-", None),
        ("-0", None),
        ("..-0", None),
        ("a b-0", None),
        ("a-0.0123456789abcdef0123456789abcdef-delete", None),
        ("a-0.0123456789abcdef0123456789abcdef-future", None),
        ("lost+found", None),
        ("x" * 249 + "-0", ("x" * 249, 0)),
        ("x" * 250 + "-0", None),
    ],
)
def test_folder_names_are_partitions_or_not(name: str, partition: tuple[str, int] | None) -> None:
    assert parse_folder_name(name) == partition
    assert partition is None or str(TopicPartition(*partition)) == name


@pytest.mark.parametrize("topic", ["a", "x" * 249])
def test_names_of_deleted_folders_fit_and_are_recognised(topic: str) -> None:
    filesystem = MemoryFileSystem()
    name = deleted_folder_name(TopicPartition(topic, 12), Random(1))
    assert len(name) <= 255
    filesystem.make_directories(f"{PATH}/{name}")
    listing = list_directory(filesystem, PATH)
    assert (listing.deleted, listing.strays, listing.partitions) == ((name,), (), {})
    assert deleted_partition(filesystem, PATH, name) is None
    filesystem.write_bytes(f"{PATH}/{name}/{PARTITION_METADATA}", encode_partition_metadata(b"topic-a-16-bytes"))
    assert deleted_partition(filesystem, PATH, name) == (b"topic-a-16-bytes", 12)


def test_a_listing_sorts_folders_and_ignores_files() -> None:
    filesystem = MemoryFileSystem()
    opened(filesystem)
    for name in ("flights-0", "flights-1", "flights-2", "lost+found", "a-0.0123456789abcdef0123456789abcdef-stray"):
        filesystem.make_directories(f"{PATH}/{name}")
    filesystem.write_bytes(f"{PATH}/flights-0/{PARTITION_METADATA}", encode_partition_metadata(b"topic-a-16-bytes"))
    filesystem.write_bytes(f"{PATH}/flights-1/{PARTITION_METADATA}", b"version: 0\ntopic_id: torn")
    listing = list_directory(filesystem, PATH)
    flights = [TopicPartition("flights", partition) for partition in range(3)]
    assert listing.partitions == {flights[0]: b"topic-a-16-bytes", flights[1]: ZERO_TOPIC_ID, flights[2]: ZERO_TOPIC_ID}
    assert len(listing.strays) == 2
    assert listing.deleted == ()
