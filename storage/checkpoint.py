r"""Encodes and decodes the small text files of a log directory, in Apache Kafka's formats.

A new version is staged beside the old one, and a committer replaces the file, so that a reader finds the old version or
the new one, never an empty or a mixed one. A damaged file raises `CheckpointError`; the caller decides whether that
costs a rebuild (recovery points) or the log directory (log start offsets).

An offset checkpoint, here of two partitions, and an epoch checkpoint are text in UTF-8, one entry a line:

    0                      version
    2                      number of entries
    flights 0 1200         topic, partition, offset
    flights 1 7

>>> encode_offsets({TopicPartition("flights", 1): 7, TopicPartition("flights", 0): 1200})
b'0\n2\nflights 0 1200\nflights 1 7\n'
>>> encode_epochs([(0, 0), (3, 1200)])
b'0\n2\n0 0\n3 1200\n'

Sources: Kafka's CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile, PartitionMetadataFile, MetaProperties
and CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import LeaderEpoch, Offset, TopicId, TopicPartition, parse_topic_id, topic_id_text
from lowtide.runtime.committer import Barrier
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.errors import StorageError

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_BEGIN_CHECKPOINT = "log-begin-offset-checkpoint"
"""Our export of the log start offsets, under the name that KIP-107 gives."""
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
"""The same in the file that Apache Kafka reads and writes."""

TEMPORARY_SUFFIX = ".tmp"

ROWS_PER_STEP = 500
"""Rows of a checkpoint, or logs, handled in one step while others wait: a few hundred microseconds."""

_VERSION = "0"
_CRC_PREFIX = b"# crc32c: "
_CRC_COMMENT = _CRC_PREFIX + b"%08x\n"
_MAX_INT64 = 2**63 - 1
_MAX_INT32 = 2**31 - 1
_MAX_DIGITS = 19
_DIRECTORY_ID_BYTES = 16
_ESCAPED = re.compile(r"\\(.)")
"""Java escapes `=`, `:`, `#`, `!` and the backslash in a value with a backslash."""


class CheckpointError(StorageError):
    """A small file that violates its format; `path` and `reason` say which and what is wrong where."""


def encode_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    """Returns the content of an offset checkpoint, sorted so that equal values give equal bytes."""
    return b"".join(offset_checkpoint_pieces(offsets))


def offset_checkpoint_pieces(offsets: Mapping[TopicPartition, Offset]) -> Iterator[bytes]:
    """Yields the content of an offset checkpoint, `ROWS_PER_STEP` rows at a time."""
    yield f"{_VERSION}\n{len(offsets)}\n".encode()
    rows = sorted(offsets.items())
    for start in range(0, len(rows), ROWS_PER_STEP):
        some = rows[start : start + ROWS_PER_STEP]
        yield "".join([f"{topic} {partition} {offset}\n" for (topic, partition), offset in some]).encode()


def decode_offsets(content: bytes, path: str, *, empty_allowed: bool = True) -> dict[TopicPartition, Offset]:
    """Returns the offsets by partition. `path` is only for the error.

    With `empty_allowed` an empty file has no entries, as in Kafka. It is False where losing the entries would bring
    deleted records back. Errors: CheckpointError with file and line, also for a partition listed twice.
    """
    offsets: dict[TopicPartition, Offset] = {}
    for number, columns in _rows(content, path, columns=3, empty_allowed=empty_allowed):
        topic_partition = TopicPartition(columns[0], _integer(columns[1], path, number, "partition", _MAX_INT32))
        if topic_partition in offsets:
            raise CheckpointError(path, f"line {number} names {topic_partition} for the second time")
        offsets[topic_partition] = _integer(columns[2], path, number, "offset", _MAX_INT64)
    return offsets


def encode_epochs(entries: Iterable[tuple[LeaderEpoch, Offset]]) -> bytes:
    """Returns the content of a `leader-epoch-checkpoint`: leader epochs and start offsets, in the given order."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def decode_epochs(content: bytes, path: str) -> list[tuple[LeaderEpoch, Offset]]:
    """Returns the entries as (leader epoch, start offset), in file order. An empty file has no entries, as in Kafka.

    Errors: CheckpointError with file and line, also for epochs that don't rise or offsets that fall.
    """
    entries: list[tuple[LeaderEpoch, Offset]] = []
    for number, columns in _rows(content, path, columns=2, empty_allowed=True):
        epoch = _integer(columns[0], path, number, "leader epoch", _MAX_INT32)
        start_offset = _integer(columns[1], path, number, "start offset", _MAX_INT64)
        if entries and (epoch <= entries[-1][0] or start_offset < entries[-1][1]):
            raise CheckpointError(
                path, f"line {number} doesn't follow the one before: {entries[-1]} then {(epoch, start_offset)}"
            )
        entries.append((epoch, start_offset))
    return entries


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    """Returns the content of a `partition.metadata`, which ties a partition's folder to a topic id.

    The third line is a CRC, which Kafka ignores. With a damaged id the log would not find its log start.
    """
    content = f"version: 0\ntopic_id: {topic_id_text(topic_id)}\n".encode("ascii")
    return content + _CRC_COMMENT % crc32c(content)


def decode_partition_metadata(content: bytes, path: str) -> TopicId:
    """Returns the topic id.

    Errors: CheckpointError, also for an empty or torn file: that of a new log isn't synced at once, so the caller then
    takes the id from the cluster's metadata. A file of Kafka has no CRC.
    """
    lines = content.splitlines(keepends=True)
    if lines and lines[-1].startswith(_CRC_PREFIX) and lines[-1] != _CRC_COMMENT % crc32c(b"".join(lines[:-1])):
        raise CheckpointError(path, "its CRC is wrong")
    properties = _properties(content, path, separator=":")
    if properties.get("version") != "0":
        raise CheckpointError(path, f"version is {properties.get('version')!r}, only '0' is known")
    try:
        return parse_topic_id(properties.get("topic_id", ""))
    except ValueError as error:
        raise CheckpointError(path, f"topic_id can't be read: {error}") from error


class MetaProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The broker and the cluster that a log directory belongs to."""

    cluster_id: str
    node_id: int
    directory_id: TopicId
    """Sixteen random bytes, made once for each directory (KIP-858); Kafka writes them as it writes topic ids."""
    others: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Lines of the file that are unknown here, kept as they are."""


def encode_meta_properties(properties: MetaProperties) -> bytes:
    """Returns the content of a `meta.properties`, version 1."""
    lines = {
        **properties.others,
        "version": "1",
        "cluster.id": properties.cluster_id,
        "node.id": str(properties.node_id),
        "directory.id": topic_id_text(properties.directory_id),
    }
    escaped = {key: value.replace("\\", r"\\") for key, value in lines.items()}
    return "".join(f"{key}={value}\n" for key, value in sorted(escaped.items())).encode()


def decode_meta_properties(content: bytes, path: str) -> MetaProperties | None:
    """Returns the properties; None if the file has none (a directory that was never formatted).

    Version 0 with `broker.id`, as Kafka wrote it before KRaft, is understood; an absent `directory.id` becomes sixteen
    zeros. Errors: CheckpointError with the name of the property.
    """
    properties = _properties(content, path, separator="=")
    if not properties:
        return None
    version = properties.pop("version", "0")
    if version not in ("0", "1"):
        raise CheckpointError(path, f"version is {version!r}, only '0' and '1' are known")
    node_id = properties.pop("node.id", None) or properties.pop("broker.id", None)
    cluster_id = properties.pop("cluster.id", "")
    if node_id is None or not node_id.isascii() or not node_id.isdigit():
        raise CheckpointError(path, f"node.id is {node_id!r}, it must be a number that isn't negative")
    if not cluster_id:
        raise CheckpointError(path, "cluster.id is missing")
    directory_id = _directory_id(properties.pop("directory.id", ""), path)
    return MetaProperties(cluster_id=cluster_id, node_id=int(node_id), directory_id=directory_id, others=properties)


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """Returns the content of the marker of a clean stop. `broker_epoch` is -1 if unknown."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(content: bytes) -> int | None:
    """Returns the broker epoch of the stop.

    None if the marker is empty (Kafka before 3.6), which is still a clean stop.
    """
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return None
    return epoch if isinstance(epoch, int) else None


def staged_checkpoint(filesystem: FileSystem, path: str, content: bytes) -> Barrier:
    """Writes `content` beside `path`. Returns the barrier that makes it durable and renames it over the old version.

    At most one version of a path may be staged: a second one would write into the file that the first is about to
    rename. Errors: OSError if the temporary file can't be written; the old version is then untouched. Does not promise:
    anything, before the barrier is done.
    """
    temporary = path + TEMPORARY_SUFFIX
    file = filesystem.open(temporary, write=True, create=True)
    try:
        file.truncate(0)
        file.pwritev([content], 0)
    except OSError:
        file.close()
        raise
    return Barrier(files=(file,), renames=((temporary, path),), directories=(parent_directory(path),))


def joined(barriers: Iterable[Barrier]) -> Barrier:
    """Joins barriers whose order doesn't matter; each directory is synced once."""
    parts = list(barriers)
    return Barrier(
        files=tuple(file for part in parts for file in part.files),
        renames=tuple(rename for part in parts for rename in part.renames),
        directories=tuple(dict.fromkeys(directory for part in parts for directory in part.directories)),
    )


def carry_out(filesystem: FileSystem, barrier: Barrier) -> None:
    """Carries out a barrier at once. For start and stop code only. Errors: OSError."""
    for file in barrier.files:
        file.sync()
    for source, target in barrier.renames:
        filesystem.rename(source, target)
    for directory in barrier.directories:
        filesystem.sync_directory(directory)


def parent_directory(path: str) -> str:
    """Returns the folder that holds `path`."""
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")


def _rows(content: bytes, path: str, *, columns: int, empty_allowed: bool) -> Iterable[tuple[int, list[str]]]:
    if not content and empty_allowed:
        return
    lines = _text(content, path).splitlines()
    if not lines:
        raise CheckpointError(path, "the file is empty")
    if lines[0].strip() != _VERSION:
        raise CheckpointError(path, f"line 1 is {lines[0]!r}, the version must be {_VERSION}")
    if len(lines) == 1:
        raise CheckpointError(path, "line 2, the number of entries, is missing")
    count = _integer(lines[1].strip(), path, 2, "number of entries", _MAX_INT32)
    rows = lines[2:]
    if len(rows) != count:
        raise CheckpointError(path, f"line 2 promises {count} entries, the file has {len(rows)}")
    if not content.endswith(b"\n"):
        raise CheckpointError(path, f"line {len(lines)} has no end")
    for number, row in enumerate(rows, start=3):
        fields = row.split()
        if len(fields) != columns:
            raise CheckpointError(path, f"line {number} has {len(fields)} columns instead of {columns}: {row!r}")
        yield number, fields


def _integer(text: str, path: str, number: int, meaning: str, largest: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS or int(text) > largest:
        raise CheckpointError(
            path, f"line {number} has {text!r} as its {meaning}, which must be a number from 0 to {largest}"
        )
    return int(text)


def _properties(content: bytes, path: str, *, separator: str) -> dict[str, str]:
    properties: dict[str, str] = {}
    for number, line in enumerate(_text(content, path).splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", "!")):
            continue
        key, found, value = stripped.partition(separator)
        if not found:
            raise CheckpointError(path, f"line {number} has no '{separator}': {line!r}")
        properties[key.strip()] = _ESCAPED.sub(r"\1", value.strip())
    return properties


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(path, f"byte {error.start} isn't UTF-8 text") from error


def _directory_id(text: str, path: str) -> TopicId:
    if not text:
        return bytes(_DIRECTORY_ID_BYTES)
    try:
        return parse_topic_id(text)
    except ValueError as error:
        raise CheckpointError(path, f"directory.id can't be read: {error}") from error
