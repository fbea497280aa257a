"""Reads the configuration of topics from the metadata log that Apache Kafka leaves in one of its log directories.

Kafka's brokers keep a copy of the cluster's metadata in `__cluster_metadata-0`: snapshots
(`<offset>-<epoch>.checkpoint`, with everything below that offset) and segments, both of ordinary record batches. A
record's value is a frame version, a record type and a version, each an unsigned varint, then fields as in a flexible
message. Only the types that name topics and their configurations are read.

It changes nothing, and stops at the first batch that isn't whole, because nothing after it was committed. It is used
only when a directory is taken over. If it can't be read, the caller continues without it.

Source: Kafka's `AbstractApiMessageSerde`, `ConfigRecord.json` and its neighbours; KIP-630 for snapshots, KIP-868 for
transactions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from lowtide.protocol.compression import CompressionError
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.primitives import read_varint
from lowtide.protocol.records import check_crc, iterate_batches, iterate_records
from lowtide.protocol.types import Offset, TopicId
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.folder_names import KAFKA_METADATA_TOPIC

MAX_BYTES: Final = 1 << 29
"""The limit of snapshot and segments together; Kafka keeps a hundred megabytes."""

_FRAME_VERSION: Final = 1
_TOPIC, _CONFIG, _REMOVE_TOPIC, _BEGIN, _END, _ABORT = 2, 4, 9, 23, 24, 25
_TOPIC_RESOURCE: Final = 2
_UUID_BYTES: Final = 16
_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-[0-9]{10}\.checkpoint")
_SEGMENT = re.compile(r"(?P<offset>[0-9]{20})\.log")


class UnreadableMetadataError(Exception):
    """There is a metadata log, but the configuration of topics can't be read from it."""


def read_topic_configs(filesystem: FileSystem, directories: Sequence[str]) -> dict[TopicId, dict[str, str]] | None:
    """Returns the configuration set on each topic, by topic id; None if no directory holds a metadata log.

    Errors: UnreadableMetadataError; OSError.
    """
    for directory in directories:
        folder = f"{directory}/{KAFKA_METADATA_TOPIC}-0"
        if filesystem.is_directory(folder):
            try:
                return _replay(_values(filesystem, folder))
            except (ProtocolError, CompressionError, IndexError, UnicodeDecodeError) as error:
                raise UnreadableMetadataError(f"{folder}: {error}") from error
    return None


def _values(filesystem: FileSystem, folder: str) -> Iterator[bytes]:
    """Yields the values of all records from the newest snapshot on."""
    names = filesystem.listdir(folder)
    snapshots = [name for name in names if _SNAPSHOT.fullmatch(name)]
    start = int(snapshots[-1][:20]) if snapshots else 0
    segments = [name for name in names if _SEGMENT.fullmatch(name)]
    # The last segment that begins at or below the snapshot's end, and those after it.
    first = max(sum(int(name[:20]) <= start for name in segments) - 1, 0)
    if segments and int(segments[first][:20]) > start:
        raise UnreadableMetadataError(f"{folder}: records are missing from {start} on")
    files = [*snapshots[-1:], *segments[first:]]
    size = sum(filesystem.file_size(f"{folder}/{name}") for name in files)
    if size > MAX_BYTES:
        raise UnreadableMetadataError(f"{folder}: {size} bytes are more than {MAX_BYTES}")
    for name in files:
        yield from _file_values(filesystem.read_bytes(f"{folder}/{name}"), 0 if _SNAPSHOT.fullmatch(name) else start)


def _file_values(content: bytes, start: Offset) -> Iterator[bytes]:
    for position, header in iterate_batches(content):
        if not check_crc(content, position, header):
            return
        if not header.is_control:
            for record in iterate_records(content[position : position + header.size_bytes], max_bytes=MAX_BYTES):
                if record.offset >= start and record.value is not None:
                    yield bytes(record.value)


def _replay(values: Iterable[bytes]) -> dict[TopicId, dict[str, str]]:
    """Applies the records in order; those of a transaction take effect when it ends."""
    names: dict[TopicId, str] = {}
    configs: dict[str, dict[str, str]] = {}
    pending: list[bytes] | None = None
    for value in values:
        kind, _ = _kind(value)
        if kind == _BEGIN:
            pending = []
        elif kind in (_END, _ABORT):
            for held in pending or () if kind == _END else ():
                _apply(held, names, configs)
            pending = None
        elif pending is not None:
            pending.append(value)
        else:
            _apply(value, names, configs)
    return {topic_id: configs.get(name, {}) for topic_id, name in names.items()}


def _apply(value: bytes, names: dict[TopicId, str], configs: dict[str, dict[str, str]]) -> None:
    kind, position = _kind(value)
    if kind == _TOPIC:
        name, position = _string(value, position)
        names[value[position : position + _UUID_BYTES]] = name or ""
    elif kind == _REMOVE_TOPIC:
        configs.pop(names.pop(value[position : position + _UUID_BYTES], ""), None)
    elif kind == _CONFIG and value[position] == _TOPIC_RESOURCE:
        topic, position = _string(value, position + 1)
        key, position = _string(value, position)
        text, position = _string(value, position)
        of_topic = configs.setdefault(topic or "", {})
        if text is None:
            of_topic.pop(key or "", None)
        else:
            of_topic[key or ""] = text


def _kind(value: bytes) -> tuple[int, int]:
    """Returns the type of a record, and the position of its fields. All types that are read have version 0 only."""
    frame_version, position = read_varint(value, 0)
    if frame_version != _FRAME_VERSION:
        raise ProtocolError(f"a metadata record has frame version {frame_version}")
    kind, position = read_varint(value, position)
    _version, position = read_varint(value, position)
    return kind, position


def _string(value: bytes, position: int) -> tuple[str | None, int]:
    length, position = read_varint(value, position)
    if length == 0:
        return None, position
    end = position + length - 1
    if end > len(value):
        raise ProtocolError(f"a string of {length - 1} bytes has {len(value) - position} left")
    return value[position:end].decode(), end
