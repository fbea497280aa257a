"""The filter of the keys of a closed segment, which spares a search from reading segments that have none of its keys.

It is a Bloom filter of blocks: the hash of a key chooses a block, and six bits in it. The hash is keyed with a secret
of the file, so clients can't choose keys that collide. The file `<base offset>.keyfilter` is, big-endian:

| at  | bytes | content |
| --- | ----- | ------- |
| 0   | 4     | "LTKF" |
| 4   | 2     | version, 1 |
| 6   | 16    | secret |
| 22  | 8     | size of the segment |
| 30  | 8     | position of the last batch in the segment |
| 38  | 61    | header of the last batch |
| 99  | 4     | number of blocks, a power of two |
| 103 | 4     | CRC-32C of what precedes |
| 107 | 64    | each block: 60 bytes of bits, then their CRC-32C, continued from the block's number |

Guards: it never says that a present key is absent. It counts only for the segment with that size and that last batch,
and a damaged block counts as full. The header has the CRC, the offset and the leader epoch: with the CRC alone, a
producer that sends its last batch again after a truncation could make an old filter valid. A missing or invalid filter
means that the segment is read. After a segment was written again or cut, its filter is invalid; it still attests erased
keys, so `segment_swap.py` removes it together with the old segment.

Only the compiled module has the hash: without it no filter is built or used.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from lowtide.protocol import native
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.storage.log.segments.segment_names import KEY_FILTER_SUFFIX, offset_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lowtide.protocol.primitives import Buffer
    from lowtide.protocol.records import BatchHeader
    from lowtide.protocol.types import FilePosition, Offset
    from lowtide.runtime.filesystem import File, FileSystem

SECRET_BYTES: Final = 16

_MAGIC: Final = b"LTKF"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(f">4sh16sqq{RECORD_BATCH_OVERHEAD}si")
_CRC: Final = struct.Struct(">I")
_BLOCKS_AT: Final = _HEAD.size + _CRC.size
_BITS_BYTES: Final = 60
_BLOCK_BYTES: Final = _BITS_BYTES + _CRC.size
_BLOCK_BITS: Final = 8 * _BITS_BYTES
_KEY_BITS: Final = 6
_MIX: Final = 0x9E3779B97F4A7C15
_WORD: Final = (1 << 64) - 1

_BLOCKS_MAX: Final = 1 << 18
"""16 MiB, which is enough for about 12 million keys."""
_BLOCKS_MIN: Final = 1 << 6
_FILL_MAX: Final = 0.5
"""A filter is halved while no more of its bits would be set: then about 10 bits are used for a key."""
_FILL_USELESS: Final = 0.7
"""With more bits set, one of nine keys would be taken for present."""


def key_filter_path(directory: str, base_offset: Offset) -> str:
    """Returns the path of a segment's filter."""
    return f"{directory}/{offset_name(base_offset)}{KEY_FILTER_SUFFIX}"


def remove_key_filter(filesystem: FileSystem, directory: str, base_offset: Offset) -> None:
    """Removes the filter of a segment, if there is one. Errors: OSError."""
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(key_filter_path(directory, base_offset))


class KeyFilterBuilder:
    """Collects the keys of a segment's batches."""

    def __init__(self, secret: bytes, segment_bytes: int) -> None:
        """`secret` has `SECRET_BYTES` and belongs to this file only."""
        assert len(secret) == SECRET_BYTES, len(secret)
        blocks = _BLOCKS_MIN
        while blocks < _BLOCKS_MAX and blocks * _BITS_BYTES < segment_bytes:
            blocks *= 2
        self._secret = secret
        self._bits = bytearray(blocks * _BITS_BYTES)
        self._is_whole = native.compiled is not None

    def add(self, header: BatchHeader, records: Buffer) -> None:
        """Adds the keys of a batch's uncompressed records."""
        if self._is_whole:
            assert native.compiled is not None
            self._is_whole = bool(native.compiled.add_keys(self._bits, self._secret, records, header.record_count))

    def encode(self, segment_bytes: int, position: FilePosition, last: bytes) -> bytes | None:
        """Returns the file for a segment whose last batch begins at byte `position`, with the header `last`.

        Returns None if a batch couldn't be read, or if there are too many keys.
        """
        bits = bytes(self._bits)
        if not self._is_whole or _fill(bits) > _FILL_USELESS:
            return None
        while len(bits) > _BITS_BYTES and _fill(half := _folded(bits)) <= _FILL_MAX:
            bits = half
        count = len(bits) // _BITS_BYTES
        head = _HEAD.pack(_MAGIC, _VERSION, self._secret, segment_bytes, position, last, count)
        parts = [head, _CRC.pack(crc32c(head))]
        for number in range(count):
            block = bits[number * _BITS_BYTES : (number + 1) * _BITS_BYTES]
            parts += (block, _block_crc(number, block))
        return b"".join(parts)


def _fill(bits: bytes) -> float:
    return int.from_bytes(bits, "big").bit_count() / (8 * len(bits))


def _folded(bits: bytes) -> bytes:
    half = len(bits) // 2
    return (int.from_bytes(bits[:half], "big") | int.from_bytes(bits[half:], "big")).to_bytes(half, "big")


def _block_crc(number: int, block: bytes) -> bytes:
    return _CRC.pack(crc32c(block, number))


class KeyFilter:
    """The valid filter of a segment."""

    def __init__(self, file: File, secret: bytes, blocks: int) -> None:
        self._file = file
        self._secret = secret
        self._blocks = blocks

    def possible(self, keys: Iterable[bytes]) -> frozenset[bytes]:
        """Returns the keys that the segment may have. Errors: OSError."""
        return frozenset(key for key in keys if self._may_have(key))

    def _may_have(self, key: bytes) -> bool:
        assert native.compiled is not None
        hashed = native.compiled.hash_key(self._secret, key)[0] & _WORD
        number = hashed & (self._blocks - 1)
        block = self._file.pread(_BLOCK_BYTES, _BLOCKS_AT + number * _BLOCK_BYTES)
        bits = block[:_BITS_BYTES]
        if block[_BITS_BYTES:] != _block_crc(number, bits):
            return True
        mixed = (hashed ^ hashed >> 32) * _MIX & _WORD
        for place in range(1, _KEY_BITS + 1):
            bit = (mixed >> (64 - 9 * place) & 511) * _BLOCK_BITS >> 9
            if not bits[bit >> 3] >> (bit & 7) & 1:
                return False
        return True

    def close(self) -> None:
        self._file.close()


def open_key_filter(filesystem: FileSystem, path: str, log_file: File, segment_bytes: int) -> KeyFilter | None:
    """Returns the filter at `path` for a segment's `.log`; None if it is missing or was built for other bytes.

    Errors: OSError.
    """
    if native.compiled is None:
        return None
    try:
        file = filesystem.open(path)
    except FileNotFoundError:
        return None
    head = file.pread(_BLOCKS_AT, 0)
    if len(head) == _BLOCKS_AT and head[_HEAD.size :] == _CRC.pack(crc32c(head[: _HEAD.size])):
        magic, version, secret, size, position, last, blocks = _HEAD.unpack_from(head)
        if (
            (magic, version, size) == (_MAGIC, _VERSION, segment_bytes)
            and blocks > 0
            and not blocks & (blocks - 1)
            and _ends_with(log_file, segment_bytes, position, last)
        ):
            return KeyFilter(file, secret, blocks)
    file.close()
    return None


def _ends_with(log_file: File, segment_bytes: int, position: FilePosition, last: bytes) -> bool:
    """Returns whether the segment's last batch begins at `position` and has this header."""
    if not 0 <= position <= segment_bytes - RECORD_BATCH_OVERHEAD:
        return False
    is_last = position + read_batch_header(last).size_bytes == segment_bytes
    return is_last and log_file.pread(RECORD_BATCH_OVERHEAD, position) == last
