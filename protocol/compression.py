"""The compression codecs of record batches. Decompression is limited.

Guards: a decompression uses not much more memory than its limit, whatever the compressed bytes claim. A sender chooses
those bytes, and a small request must not become gigabytes.

The libraries:

| codec  | library | reason                                                                                 |
| ------ | ------- | -------------------------------------------------------------------------------------- |
| gzip   | zlib    | in the standard library, streams, stops at a maximum length                            |
| snappy | cramjam | writes into our buffer, whose size is in the header of the block                       |
| lz4    | lz4     | stops at a maximum length; cramjam takes 4 times as long to read, 10 to write          |
| zstd   | cramjam | writes into our buffer and refuses windows above 128 MiB, as Kafka's Java library does |

Snappy is written in the framing of snappy-java's `SnappyOutputStream`, which Kafka's consumers expect: the 16 bytes
`82 53 4e 41 50 50 59 00 | version 1 | compatible version 1`, then blocks of at most 32 KiB, each
`int32 length | raw snappy`. Raw snappy is also read, because librdkafka and old clients write it. LZ4 is one frame of
independent blocks, the only kind that Kafka's Java reader accepts (`Lz4BlockInputStream`).

Contents in many tiny pieces (gzip members, snappy blocks) are refused, because each piece costs as much as thousands of
bytes. All codecs use their default level.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

import cramjam
import lz4.frame  # type: ignore[import-untyped]

from lowtide.protocol.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes. Values 5 to 7 are invalid."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(ProtocolError):
    """Invalid compressed bytes."""


class DecompressedTooLargeError(CompressionError):
    """The decompressed content exceeds the limit."""


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
"""snappy-java's default block."""

_GZIP_WINDOW_BITS = 31
"""zlib's largest window, with a gzip header and trailer."""

_LZ4_FLAGS_POSITION = 4
_LZ4_INDEPENDENT_BLOCKS = 0x20
"""The bit of the frame's flag byte for independent blocks."""

_PIECES = 64
_BYTES_PER_PIECE = 512
"""The allowed number of pieces: `_PIECES`, and one for each `_BYTES_PER_PIECE` of content. Clients write one gzip
member, and snappy blocks of 32 KiB."""

_INPUT_BYTES = 64 * 1024
_OUTPUT_BYTES = 256 * 1024
"""The sizes of the pieces in which `decompress_into` feeds codecs that copy while they hold the interpreter's lock."""

_ZSTD_FIRST_GUESS_RATIO = 8
_ZSTD_SMALLEST_GUESS_BYTES = 16 * 1024
_ZSTD_GROWTH = 4
_OUTPUT_FULL = "failed to write whole buffer"
"""The text of cramjam's error if the output does not fit; a test detects a change of it."""


def compress(codec: Compression, data: Buffer) -> bytes:
    """Returns `data` compressed, in a form that Kafka's clients of all languages can read."""
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.GZIP:
        return zlib.compress(data, wbits=_GZIP_WINDOW_BITS)
    if codec is Compression.SNAPPY:
        return _compress_xerial(data)
    if codec is Compression.LZ4:
        compressed: bytes = lz4.frame.compress(data, block_linked=False, store_size=False)
        return compressed
    return bytes(cramjam.zstd.compress(data))


def decompress(codec: Compression, data: Buffer, *, max_bytes: int) -> bytes | bytearray:
    """Returns the decompressed content, at most `max_bytes` (inclusive).

    Errors: DecompressedTooLargeError above the limit; CompressionError for invalid, truncated or surplus bytes.
    """
    assert max_bytes >= 0
    if codec is Compression.NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    if codec is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec is Compression.ZSTD:
        return _decompress_zstd(data, max_bytes)
    parts = list(_STREAMS[codec](data, max_bytes, max_bytes + 1))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def decompress_into(codec: Compression, data: Buffer, room: memoryview) -> memoryview:
    """Decompresses into `room`, whose length is the limit. Returns the part that was written.

    For large contents in a thread: allocates nothing large, and holds the interpreter's lock only briefly. Errors:
    those of `decompress`.
    """
    assert codec is not Compression.NONE
    if codec is Compression.SNAPPY:
        return room[: _snappy_into(data, room)]
    if codec is Compression.ZSTD:
        return room[: _zstd_into(data, room)]
    size = 0
    for part in _STREAMS[codec](data, len(room), _OUTPUT_BYTES):
        room[size : size + len(part)] = part
        size += len(part)
    return room[:size]


def _check_pieces(codec: Compression, count: int, size: int) -> None:
    """Refuses `size` bytes that came in too many pieces (`_PIECES`, `_BYTES_PER_PIECE`). Errors: CompressionError."""
    if count > _PIECES + size // _BYTES_PER_PIECE:
        raise _broken(codec, f"{size} bytes in {count} pieces")


def _too_large(codec: Compression, max_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"{codec.name.lower()} data is larger than {max_bytes} bytes when decompressed")


def _broken(codec: Compression, why: object) -> CompressionError:
    return CompressionError(f"broken {codec.name.lower()} data: {why}")


def _gzip_parts(data: Buffer, max_bytes: int, part_bytes: int) -> Iterator[bytes]:
    """Yields the content of one or more gzip members, at most `part_bytes` at a time.

    RFC 1952 allows several members, and Java's reader joins them. zlib copies its unconsumed input, so it is fed in
    pieces; otherwise each of many members would copy the whole rest.
    """
    view = memoryview(data)
    member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    members, size, position = 1, 0, 0
    while position < len(view):
        fed: Buffer = view[position : position + _INPUT_BYTES]
        position += len(fed)
        while True:
            wanted = min(part_bytes, max_bytes - size + 1)
            try:
                part = member.decompress(fed, wanted)
            except zlib.error as error:
                raise _broken(Compression.GZIP, error) from error
            size += len(part)
            if size > max_bytes:
                raise _too_large(Compression.GZIP, max_bytes)
            yield part
            fed = member.unconsumed_tail
            if member.eof or (not fed and len(part) < wanted):
                break
        if member.eof:
            position -= len(member.unused_data)
            if position == len(view):
                return
            _check_pieces(Compression.GZIP, members, size)
            members += 1
            member = zlib.decompressobj(_GZIP_WINDOW_BITS)
    raise _broken(Compression.GZIP, "it ends too early")


def _lz4_parts(data: Buffer, max_bytes: int, part_bytes: int) -> Iterator[bytes]:
    """Yields the content of one LZ4 frame, at most `part_bytes` at a time."""
    if len(data) > _LZ4_FLAGS_POSITION and not data[_LZ4_FLAGS_POSITION] & _LZ4_INDEPENDENT_BLOCKS:
        raise _broken(Compression.LZ4, "its blocks depend on each other, which Kafka's Java clients cannot read")
    view = memoryview(data)
    frame = lz4.frame.LZ4FrameDecompressor()
    fed_bytes = len(view) if part_bytes > max_bytes else _INPUT_BYTES
    size = position = 0
    while not frame.eof and (position < len(view) or not frame.needs_input):
        fed = view[position : position + fed_bytes] if frame.needs_input else b""
        position += len(fed)
        try:
            part: bytes = frame.decompress(fed, max_length=part_bytes)
        except (RuntimeError, EOFError, ValueError) as error:
            raise _broken(Compression.LZ4, error) from error
        size += len(part)
        if size > max_bytes:
            raise _too_large(Compression.LZ4, max_bytes)
        yield part
    if not frame.eof:
        raise _broken(Compression.LZ4, "it ends too early")
    if frame.unused_data or position < len(view):
        raise _broken(Compression.LZ4, "bytes follow the frame")


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytearray:
    """Decompresses into a buffer that grows until it is large enough: most producers do not store the size."""
    room = min(max_bytes, max(_ZSTD_SMALLEST_GUESS_BYTES, _ZSTD_FIRST_GUESS_RATIO * len(data)))
    while True:
        content = bytearray(room)
        try:
            size = cramjam.zstd.decompress_into(data, content)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise _broken(Compression.ZSTD, error) from error
            if room == max_bytes:
                raise _too_large(Compression.ZSTD, max_bytes) from error
            room = min(max_bytes, room * _ZSTD_GROWTH)
        else:
            del content[size:]
            return content


def _zstd_into(data: Buffer, room: memoryview) -> int:
    try:
        size: int = cramjam.zstd.decompress_into(data, room)
    except cramjam.DecompressionError as error:
        if _OUTPUT_FULL not in str(error):
            raise _broken(Compression.ZSTD, error) from error
        raise _too_large(Compression.ZSTD, len(room)) from error
    return size


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes | bytearray:
    """Decompresses snappy-java's blocks, or one raw block without its header."""
    parts: list[bytearray] = []
    room = max_bytes
    for block in _snappy_blocks(data):
        part = bytearray(_raw_snappy_size(block, room, max_bytes))
        _raw_snappy_into(block, part)
        room -= len(part)
        parts.append(part)
        _check_pieces(Compression.SNAPPY, len(parts), max_bytes - room)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _snappy_into(data: Buffer, room: memoryview) -> int:
    size = 0
    for count, block in enumerate(_snappy_blocks(data), 1):
        end = size + _raw_snappy_size(block, len(room) - size, len(room))
        _raw_snappy_into(block, room[size:end])
        size = end
        _check_pieces(Compression.SNAPPY, count, size)
    return size


def _snappy_blocks(data: Buffer) -> Iterator[memoryview]:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        yield view
        return
    if len(view) < len(_XERIAL_HEADER):
        raise _broken(Compression.SNAPPY, "its header is cut")
    position = len(_XERIAL_HEADER)
    while position < len(view):
        start = position + 4
        position = start + int.from_bytes(view[start - 4 : start], "big")
        if start >= position or position > len(view):
            raise _broken(Compression.SNAPPY, f"a block of {position - start} bytes does not fit")
        yield view[start:position]


def _raw_snappy_size(block: memoryview, room: int, max_bytes: int) -> int:
    """Returns the content size in a block's header, which may be wrong. Errors: CompressionError above `room`."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _broken(Compression.SNAPPY, error) from error
    if size > room:
        raise _too_large(Compression.SNAPPY, max_bytes)
    return size


def _raw_snappy_into(block: memoryview, content: bytearray | memoryview) -> None:
    try:
        written = cramjam.snappy.decompress_raw_into(block, content)
    except cramjam.DecompressionError as error:
        raise _broken(Compression.SNAPPY, error) from error
    if written != len(content):
        raise _broken(Compression.SNAPPY, f"{written} bytes instead of {len(content)}")


_STREAMS: Final[Mapping[Compression, Callable[[Buffer, int, int], Iterator[bytes]]]] = {
    Compression.GZIP: _gzip_parts,
    Compression.LZ4: _lz4_parts,
}
"""The codecs that decompress in parts. Arguments: the data, the limit, and the size of a part."""
