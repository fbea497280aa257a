"""Kafka's small text files: what is written can be read, by Kafka too, and damage is reported with file and line."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.types import TopicPartition
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.storage.checkpoint import (
    CheckpointError,
    MetaProperties,
    carry_out,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
    staged_checkpoint,
)

PATH = "/logs/some-file"
OFFSETS = st.integers(0, 2**63 - 1)
TOPICS = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(st.dictionaries(st.builds(TopicPartition, TOPICS, st.integers(0, 2**31 - 1)), OFFSETS))
def test_offsets_come_back(offsets: dict[TopicPartition, int]) -> None:
    assert decode_offsets(encode_offsets(offsets), PATH, empty_allowed=False) == offsets


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), OFFSETS), unique_by=lambda entry: entry[0]))
def test_epochs_come_back(entries: list[tuple[int, int]]) -> None:
    rising = list(zip(sorted(epoch for epoch, _ in entries), sorted(offset for _, offset in entries), strict=True))
    assert decode_epochs(encode_epochs(rising), PATH) == rising


@given(
    st.dictionaries(st.builds(TopicPartition, TOPICS, st.integers(0, 99)), OFFSETS, min_size=1, max_size=4), st.data()
)
def test_a_cut_at_any_byte_is_noticed(offsets: dict[TopicPartition, int], draw: st.DataObject) -> None:
    """The count gives the number of lines, and the last line must end with a newline."""
    content = encode_offsets(offsets)
    cut = draw.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CheckpointError):
        decode_offsets(content[:cut], PATH, empty_allowed=False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"1\n0\n", "line 1 is '1', the version must be 0"),
        (b"0\n", "line 2, the number of entries, is missing"),
        (b"0\nx\n", "line 2 has 'x' as its number of entries"),
        (b"0\n2\na 0 1\n", "line 2 promises 2 entries, the file has 1"),
        (b"0\n0\na 0 1\n", "line 2 promises 0 entries, the file has 1"),
        (b"0\n1\na 0\n", "line 3 has 2 columns instead of 3"),
        (b"0\n1\na 0 -1\n", "line 3 has '-1' as its offset"),
        (b"0\n1\na 0 9223372036854775808\n", "line 3 has '9223372036854775808' as its offset"),
        (b"0\n1\na 2147483648 1\n", "line 3 has '2147483648' as its partition"),
        (b"0\n1\na 0 " + b"9" * 5000 + b"\n", "as its offset"),
        (b"0\n2\na 0 1\na 0 2\n", "line 4 names a-0 for the second time"),
        (b"0\n1\na 0 1", "line 3 has no end"),
        (b"0\n1\n\xff 0 1\n", "byte 4 isn't UTF-8"),
        ("0\n1\na 0 ٣\n".encode(), "as its offset"),
    ],
)
def test_a_damaged_offset_checkpoint_is_reported_with_file_and_line(content: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        decode_offsets(content, PATH, empty_allowed=False)
    assert str(raised.value).startswith(f"{PATH}: ")
    assert reason in str(raised.value)


def test_kafka_s_forms_are_understood() -> None:
    """Any white space between columns, and an empty file for no entries where that is harmless (CheckpointFile)."""
    assert decode_offsets(b"0\r\n1\r\nmy.topic\t3   42\r\n", PATH) == {TopicPartition("my.topic", 3): 42}
    assert decode_offsets(b"", PATH) == {}
    assert decode_epochs(b"", PATH) == []


@pytest.mark.parametrize("content", [b"0\n2\n3 10\n3 11\n", b"0\n2\n3 10\n4 9\n", b"0\n1\n-1 0\n", b"0\n1\n1\n"])
def test_epochs_that_do_not_rise_are_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode_epochs(content, PATH)


def test_partition_metadata_is_as_kafka_writes_it_and_has_a_crc() -> None:
    """Kafka 4.4.0 reads no third line."""
    content = b"version: 0\ntopic_id: XyyrUmRjQ6mwBRQYFZGmXQ\n"
    topic_id = decode_partition_metadata(content, PATH)
    assert topic_id.hex() == "5f2cab52646343a9b00514181591a65d"
    encoded = encode_partition_metadata(topic_id)
    assert encoded.startswith(content)
    assert encoded.count(b"\n") == 3


def test_no_bit_of_partition_metadata_makes_another_topic_id() -> None:
    """Protects deleted records: under another id the log had no log start."""
    topic_id = b"topic-a-16-bytes"
    content = encode_partition_metadata(topic_id)
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(CheckpointError):
            assert decode_partition_metadata(bytes(changed), PATH) == topic_id, bit


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"version: 0\n",
        b"version: 1\ntopic_id: XyyrUmRjQ6mwBRQYFZGmXQ\n",
        b"version: 0\ntopic_id: XyyrUm",
        b"\0" * 20,
    ],
)
def test_a_torn_partition_metadata_is_refused(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        decode_partition_metadata(content, PATH)


def test_meta_properties_come_back_with_unknown_properties() -> None:
    content = b"#\n#Sat Nov 21 04:00:00 UTC 2026\nfuture.key=a\\=b\\\\c\nnode.id=3\n"
    content += b"directory.id=XyyrUmRjQ6mwBRQYFZGmXQ\nversion=1\ncluster.id=abc\\=\\=\n"
    properties = decode_meta_properties(content, PATH)
    assert properties is not None
    assert (properties.cluster_id, properties.node_id, properties.others) == ("abc==", 3, {"future.key": "a=b\\c"})
    assert decode_meta_properties(encode_meta_properties(properties), PATH) == properties


def test_meta_properties_of_an_old_kafka_are_understood() -> None:
    assert decode_meta_properties(b"version=0\nbroker.id=7\ncluster.id=x\n", PATH) == MetaProperties(
        cluster_id="x", node_id=7, directory_id=bytes(16)
    )
    assert decode_meta_properties(b"\n# nothing\n", PATH) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"version=2\nnode.id=1\ncluster.id=x\n", "version is '2'"),
        (b"version=1\nnode.id=-1\ncluster.id=x\n", "node.id is '-1'"),
        (b"version=1\ncluster.id=x\n", "node.id is None"),
        (b"version=1\nnode.id=1\n", "cluster.id is missing"),
        (b"version=1\nnode.id=1\ncluster.id=x\ndirectory.id=short\n", "directory.id can't be read"),
        (b"version=1\nnonsense\n", "line 2 has no '='"),
    ],
)
def test_a_damaged_meta_properties_is_refused_with_the_property(content: bytes, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        decode_meta_properties(content, PATH)


def test_the_marker_of_a_clean_stop_holds_the_broker_epoch_or_nothing() -> None:
    assert decode_clean_shutdown(encode_clean_shutdown(42)) == 42
    assert decode_clean_shutdown(b"") is None
    assert decode_clean_shutdown(b'{"version":0}') is None
    assert decode_clean_shutdown(b"[]") is None


def test_a_staged_checkpoint_is_the_old_or_the_new_after_any_power_cut() -> None:
    """S7: never empty, never mixed."""
    old, new = (
        encode_offsets({TopicPartition("a", 0): 1}),
        encode_offsets({TopicPartition("b", part): 2 for part in range(200)}),
    )
    outcomes = set()
    for seed in range(60):
        filesystem = MemoryFileSystem(Random(seed))
        filesystem.make_directories("/logs")
        filesystem.sync_directory("/")
        filesystem.replace_file(PATH, old)
        barrier = staged_checkpoint(filesystem, PATH, new)
        assert filesystem.read_bytes(PATH) == old, "nothing happens before the barrier"
        if seed % 2:
            carry_out(filesystem, type(barrier)(files=barrier.files, renames=barrier.renames))
        filesystem.power_cut()
        outcomes.add(filesystem.read_bytes(PATH))
    assert outcomes == {old, new}
