"""The ends of the holes in the logs of one directory: noted durably before they are made, read after an unclean stop.

A power cut may leave a hole without its header, and so a log without a beginning. The notes have the position of its
first batch. They may be older than the logs, so a note is used only if the batch that it names is there and sound, and
the log start has reached it.

Two files take turns, so that one is always whole, and are overwritten in place. They are created with the directory and
keep room for twice the notes, so that holes need no room on a full disk.

| position | bytes | field                                                                                            |
|----------|-------|--------------------------------------------------------------------------------------------------|
| 0        | 8     | `LTHOLES1`                                                                                       |
| 8        | 8     | sequence number, big-endian; that of the last version is the largest                             |
| 16       | 4     | length of the notes                                                                              |
| 20       | 4     | CRC-32C of sequence number, length and notes                                                     |
| 24       |       | the notes, as MessagePack: [[topic id, partition, base offset, next offset, size, leader epoch]] |

If offsets are missing after a hole, their number is the last element of its note. Zeros follow, up to a whole block.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import LeaderEpoch, Offset, TopicId
from lowtide.runtime.committer import Barrier
from lowtide.storage.log.segments.hole import Hole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.runtime.filesystem import FileSystem

HOLE_NOTES: Final = ("lowtide-holes.0", "lowtide-holes.1")

_MAGIC: Final = b"LTHOLES1"
_HEADER: Final = struct.Struct(">8sQII")
_BLOCK: Final = 4096
_CREATED_BYTES: Final = 4 * _BLOCK
"""Enough for about three hundred logs."""


class HoleNote(NamedTuple):
    """A hole and its partition."""

    topic_id: TopicId
    partition: int
    base_offset: Offset
    next_offset: Offset
    size: int
    leader_epoch: LeaderEpoch
    gap: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[HoleNote]).decode


def encode_notes(sequence: int, holes: Mapping[tuple[TopicId, int], Hole]) -> bytes:
    """Returns the bytes of one version."""
    notes = _encode([(*key, *_fields(hole)) for key, hole in holes.items()])
    content = _HEADER.pack(_MAGIC, sequence, len(notes), _crc(sequence, notes)) + notes
    return content.ljust(-(-len(content) // _BLOCK) * _BLOCK, b"\0")


def decode_notes(content: bytes) -> tuple[int, dict[tuple[TopicId, int], Hole]] | None:
    """Returns sequence number and holes; None if the content isn't a whole version."""
    if len(content) < _HEADER.size:
        return None
    magic, sequence, length, crc = _HEADER.unpack_from(content)
    notes = content[_HEADER.size : _HEADER.size + length]
    if magic != _MAGIC or len(notes) < length or _crc(sequence, notes) != crc:
        return None
    try:
        rows = _decode(notes)
    except ValueError:
        return None
    return sequence, {(row.topic_id, row.partition): Hole(*row[2:]) for row in rows}


def read_notes(filesystem: FileSystem, directory: str) -> tuple[int, dict[tuple[TopicId, int], Hole]]:
    """Returns the last version; number 0 and no holes if there is none. Errors: OSError."""
    found = []
    for name in HOLE_NOTES:
        if filesystem.exists(f"{directory}/{name}"):
            version = decode_notes(filesystem.read_bytes(f"{directory}/{name}"))
            if version is not None:
                found.append(version)
    return max(found, key=lambda version: version[0], default=(0, {}))


def create_notes(filesystem: FileSystem, directory: str) -> None:
    """Creates missing files durably. Start code: it syncs. Errors: OSError."""
    for name in HOLE_NOTES:
        if not filesystem.exists(f"{directory}/{name}"):
            file = filesystem.open(f"{directory}/{name}", write=True, create=True)
            file.pwritev([encode_notes(0, {}).ljust(_CREATED_BYTES, b"\0")], 0)
            file.sync()
            filesystem.sync_directory(directory)


def write_notes(
    filesystem: FileSystem, directory: str, sequence: int, holes: Mapping[tuple[TopicId, int], Hole]
) -> Barrier:
    """Writes a version over the last but one.

    Returns what makes it durable. Errors: OSError; the last version stays.
    """
    path = f"{directory}/{HOLE_NOTES[sequence % 2]}"
    is_new = not filesystem.exists(path)
    file = filesystem.open(path, write=True, create=True)
    content = encode_notes(sequence, holes)
    file.pwritev([content], 0)
    size = filesystem.file_size(path)
    if size < 2 * len(content):
        with contextlib.suppress(OSError):  # Room for later ones can be lacking.
            file.pwritev([bytes(2 * len(content) - size)], size)
    return Barrier(files=(file,), directories=(directory,) if is_new else ())


def _fields(hole: Hole) -> tuple[int, ...]:
    fields = (hole.base_offset, hole.next_offset, hole.size, hole.leader_epoch)
    return (*fields, hole.gap) if hole.gap else fields


def _crc(sequence: int, notes: bytes) -> int:
    return crc32c(notes, crc32c(struct.pack(">QI", sequence, len(notes))))
