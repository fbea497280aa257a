"""Kafka's metadata log is read for the configurations of topics; unexpected contents are no obstacle to a start."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.primitives import unsigned_varint
from lowtide.protocol.records import Compression
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.directory.kafka_metadata import UnreadableMetadataError, read_topic_configs

FOLDER = "/disk/__cluster_metadata-0"
A, B = b"topic-a-16-bytes", b"topic-b-16-bytes"

OF_KAFKA = bytes.fromhex(
    "00000000000003820000014e0000000502d5ba0274000000000005000001a1fd1ae1e2000001a1fd1ae1e2ffffffffffffffffffffffffffff000000"
    "0648000000013c0102000a636f6d70616374656429c7d49f9d9045718aac3df0836d8ce7000058000002014c010400020a636f6d7061637465640f63"
    "6c65616e75702e706f6c69637908636f6d70616374000056000004014a010400020a636f6d7061637465640e7365676d656e742e6279746573083130"
    "3438353736000090010000060182010103020000000029c7d49f9d9045718aac3df0836d8ce702000000010200000001010100000001000000000000"
    "00000200000000000000000000000000000001000090010000080182010103020000000129c7d49f9d9045718aac3df0836d8ce70200000001020000"
    "00010101000000010000000000000000020000000000000000000000000000000100001400000a01080114000000"
)
"""The batch in which Apache Kafka 4.3.1 created a topic of two partitions with two settings."""

OF_KAFKA_TELLS = {
    bytes.fromhex("29c7d49f9d9045718aac3df0836d8ce7"): {"cleanup.policy": "compact", "segment.bytes": "1048576"}
}


def text(value: str | None) -> bytes:
    return b"\0" if value is None else unsigned_varint(len(value.encode()) + 1) + value.encode()


def topic(name: str, topic_id: bytes) -> bytes:
    return b"\x01\x02\x00" + text(name) + topic_id + b"\0"


def config(name: str, key: str, value: str | None, *, resource: int = 2) -> bytes:
    return b"\x01\x04\x00" + bytes([resource]) + text(name) + text(key) + text(value) + b"\0"


def removed(topic_id: bytes) -> bytes:
    return b"\x01\x09\x00" + topic_id + b"\0"


BEGIN, END, ABORT = b"\x01\x17\x00\0", b"\x01\x18\x00\0", b"\x01\x19\x00\0"
UNKNOWN = b"\x01\x7f\x05 whatever"


def batch(base_offset: int, values: Sequence[bytes], compression: Compression = Compression.NONE) -> bytes:
    return build_batch([(1, None, value, ()) for value in values], base_offset=base_offset, compression=compression)


def disk(**files: bytes) -> MemoryFileSystem:
    """Names without their zeros: `log_5` is a segment, `checkpoint_5` a snapshot."""
    filesystem = MemoryFileSystem()
    filesystem.make_directories(FOLDER)
    for name, content in files.items():
        kind, _, offset = name.partition("_")
        path = f"{int(offset):020}.log" if kind == "log" else f"{int(offset):020}-0000000003.checkpoint"
        filesystem.write_bytes(f"{FOLDER}/{path}", content)
    return filesystem


def read(filesystem: MemoryFileSystem) -> dict[bytes, dict[str, str]] | None:
    return read_topic_configs(filesystem, ["/other", "/disk"])


def test_what_kafka_wrote_is_read() -> None:
    assert read(disk(log_0=OF_KAFKA)) == OF_KAFKA_TELLS


def test_a_directory_without_a_metadata_log_has_no_topics() -> None:
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/disk")
    assert read(filesystem) is None


def test_the_last_value_of_a_key_counts_and_a_removed_topic_is_left_out() -> None:
    records = [
        topic("a", A),
        config("a", "retention.ms", "5"),
        config("a", "segment.ms", "7"),
        config("1", "retention.ms", "9", resource=4),
        topic("b", B),
        config("b", "cleanup.policy", "compact"),
        UNKNOWN,
        removed(B),
        topic("b", b"topic-b-made-new"),
        config("a", "retention.ms", "6"),
        config("a", "segment.ms", None),
    ]
    expected = {A: {"retention.ms": "6"}, b"topic-b-made-new": {}}
    for cut in range(1, len(records)):
        whole = batch(0, records[:cut]) + batch(cut, records[cut:], Compression.LZ4)
        assert read(disk(log_0=whole)) == expected


def test_a_snapshot_replaces_all_below_its_end() -> None:
    """Segments that it covers are ignored, even if they still exist."""
    filesystem = disk(
        checkpoint_3=batch(0, [topic("old", B)]),
        checkpoint_5=batch(0, [topic("a", A), config("a", "retention.ms", "1")]),
        log_0=batch(0, [topic("b", B)] * 4),
        log_4=batch(4, [topic("b", B)]) + batch(5, [config("a", "segment.ms", "2")]),
        log_6=batch(6, [config("a", "retention.ms", "3")]),
    )
    assert read(filesystem) == {A: {"retention.ms": "3", "segment.ms": "2"}}
    assert read(disk(checkpoint_5=batch(0, [topic("a", A)]))) == {A: {}}


def test_records_of_a_transaction_count_when_it_ends() -> None:
    begun = [topic("a", A), BEGIN, config("a", "retention.ms", "1")]
    assert read(disk(log_0=batch(0, begun))) == {A: {}}
    assert read(disk(log_0=batch(0, [*begun, ABORT, config("a", "segment.ms", "2")]))) == {A: {"segment.ms": "2"}}
    assert read(disk(log_0=batch(0, [*begun, END]))) == {A: {"retention.ms": "1"}}


def test_a_log_that_was_cut_off_ends_at_its_last_whole_batch() -> None:
    first, second = batch(0, [topic("a", A)]), batch(1, [topic("b", B)])
    for length in range(len(second)):
        assert read(disk(log_0=first + second[:length])) == {A: {}}
    assert read(disk(log_0=first + second[:-1] + b"\xff")) == {A: {}}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"log_5": batch(5, [topic("a", A)])}, "records are missing from 0 on"),
        (
            {"checkpoint_3": batch(0, [topic("a", A)]), "log_5": batch(5, [topic("b", B)])},
            "records are missing from 3 on",
        ),
        ({"log_0": batch(0, [b"\x02\x02\x00"])}, "frame version 2"),
        ({"log_0": batch(0, [b"\x01"])}, "index out of range"),
        ({"log_0": batch(0, [b"\x01\x02\x00\x20ab"])}, "a string of 31 bytes has 2 left"),
        ({"log_0": batch(0, [b"\x01\x02\x00\x02\xff" + A])}, "can't decode"),
        ({"log_0": b"\0" * 100}, "impossible length"),
    ],
)
def test_a_log_that_cannot_be_understood_is_refused(files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(UnreadableMetadataError, match=f"{FOLDER}: .*{re.escape(reason)}"):
        read(disk(**files))


def test_no_bytes_raise_anything_else() -> None:
    source = random.Random(3)
    records = [topic("a", A), config("a", "retention.ms", "5"), BEGIN, removed(A), END]
    for _ in range(500):
        wrong = [bytearray(record) for record in records]
        for _ in range(source.randint(1, 4)):
            record = source.choice(wrong)
            record[source.randrange(len(record))] = source.randrange(256)
        try:
            read(disk(log_0=batch(0, [bytes(record) for record in wrong])))
        except UnreadableMetadataError:
            continue
