"""The compression codecs of record batches, decompressing only as far as a limit allows.

Invariant: `decompress` never hands out, and never holds, much more than `max_bytes`, whatever the compressed bytes
claim. The sender chooses those bytes, so a small request must not become gigabytes of memory.

Which library, and why:

| codec  | library       | reason                                                                                                  |
|--------|---------------|---------------------------------------------------------------------------------------------------------|
| gzip   | zlib          | in the standard library, streams, stops at a maximum length                                             |
| snappy | cramjam       | writes into a buffer of ours, whose size the block's own header gives                                   |
| lz4    | lz4           | streams and stops at a maximum length; cramjam costs four times as much to read and ten times to write  |
| zstd   | cramjam       | writes into a buffer of ours and refuses windows above 128 MiB, as Kafka's Java library does            |

Framing. Snappy is written as snappy-java's `SnappyOutputStream` does, because Kafka's consumers expect it: the 16 bytes
`82 53 4e 41 50 50 59 00 | version 1 | compatible version 1`, then blocks of at most 32 KiB, each `int32 length | raw snappy`.
Raw snappy without that header is read too, for librdkafka and old clients write it. LZ4 is one frame of independent
blocks: Kafka's Java reader knows no others (`Lz4BlockInputStream`).

A content that is cut into many tiny pieces (gzip members, snappy blocks) is refused: each piece costs as much as
thousands of bytes, and a sender chooses how many there are.

Does not choose levels: each codec's default is used.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import TypeAlias

import cramjam
import lz4.frame  # type: ignore[import-untyped]

from lowtide.protocol.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The lowest three bits of a batch's attributes. Values 5 to 7 have no meaning."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressionError(ProtocolError):
    """Compressed bytes that cannot be turned back."""


class DecompressedTooLargeError(CompressionError):
    """The bytes behind the compression are more than the limit allows."""


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
"""snappy-java's default block."""

_GZIP_WINDOW_BITS = 31
"""zlib's largest window, with a gzip header and trailer."""

_LZ4_FLAGS_POSITION = 4
_LZ4_INDEPENDENT_BLOCKS = 0x20
"""The bit of the frame's flag byte that says that no block needs the ones before it."""

_PIECES = 64
_BYTES_PER_PIECE = 512
"""So many pieces a content may have, and one more for so many bytes of it. Clients write one gzip member, and snappy blocks of 32 KiB."""

_INPUT_BYTES = 64 * 1024
_OUTPUT_BYTES = 256 * 1024
"""What `decompress_into` hands to a codec that copies under the interpreter's lock, and takes from it, at a time."""

_ZSTD_FIRST_GUESS_RATIO = 8
_ZSTD_SMALLEST_GUESS_BYTES = 16 * 1024
_ZSTD_GROWTH = 4
_OUTPUT_FULL = "failed to write whole buffer"
"""How cramjam says that the output does not fit; a test notices when it changes."""


def compress(codec: Compression, data: Buffer) -> bytes:
    """Compress `data` so that Kafka's clients of every language can read it back."""
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
    """Turn compressed bytes back, at most `max_bytes` (inclusive) of them.

    Errors: DecompressedTooLargeError above the limit; CompressionError when the bytes are broken, cut short, or
    continue behind their end.
    """
    assert max_bytes >= 0
    if codec is Compression.NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return bytes(data)
    if codec is Compression.GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec is Compression.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec is Compression.LZ4:
        return _decompress_lz4(data, max_bytes)
    return _decompress_zstd(data, max_bytes)


def decompress_into(codec: Compression, data: Buffer, room: memoryview) -> memoryview:
    """Turn compressed bytes back into `room`, whose length is the limit. Returns the part of it that was written.

    For large contents in a thread: nothing large is allocated or freed, and the interpreter's lock is never held for
    long. Errors: those of `decompress`.
    """
    assert codec is not Compression.NONE
    if codec is Compression.GZIP:
        size = _gzip_into(data, room)
    elif codec is Compression.SNAPPY:
        size = _snappy_into(data, room)
    elif codec is Compression.LZ4:
        size = _lz4_into(data, room)
    else:
        size = _zstd_into(data, room)
    return room[:size]


def _check_pieces(codec: Compression, count: int, size: int) -> None:
    """Errors: CompressionError when `size` bytes came in more pieces than `_PIECES` and `_BYTES_PER_PIECE` allow."""
    if count > _PIECES + size // _BYTES_PER_PIECE:
        raise _broken(codec, f"{size} bytes in {count} pieces")


def _too_large(codec: Compression, max_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"{codec.name.lower()} data is larger than {max_bytes} bytes when decompressed")


def _broken(codec: Compression, why: object) -> CompressionError:
    return CompressionError(f"broken {codec.name.lower()} data: {why}")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    parts = list(_gzip_parts(data, max_bytes, max_bytes + 1))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _gzip_into(data: Buffer, room: memoryview) -> int:
    size = 0
    for part in _gzip_parts(data, len(room), _OUTPUT_BYTES):
        room[size : size + len(part)] = part
        size += len(part)
    return size


def _gzip_parts(data: Buffer, max_bytes: int, part_bytes: int) -> Iterator[bytes]:
    """Read one or more gzip members (RFC 1952 allows several; Java's reader joins them), at most `part_bytes` at a time.

    zlib copies what it has not consumed, so it is fed in pieces: else many members would copy the whole rest each.
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


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    """Read one LZ4 frame."""
    _check_lz4(data)
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        content: bytes = frame.decompress(data, max_length=max_bytes + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _broken(Compression.LZ4, error) from error
    if len(content) > max_bytes:
        raise _too_large(Compression.LZ4, max_bytes)
    _check_lz4_end(frame)
    return content


def _lz4_into(data: Buffer, room: memoryview) -> int:
    _check_lz4(data)
    view = memoryview(data)
    frame = lz4.frame.LZ4FrameDecompressor()
    size = position = 0
    while not frame.eof and (position < len(view) or not frame.needs_input):
        fed = view[position : position + _INPUT_BYTES] if frame.needs_input else b""
        position += len(fed)
        try:
            part = frame.decompress(fed, max_length=_OUTPUT_BYTES)
        except (RuntimeError, EOFError, ValueError) as error:
            raise _broken(Compression.LZ4, error) from error
        if size + len(part) > len(room):
            raise _too_large(Compression.LZ4, len(room))
        room[size : size + len(part)] = part
        size += len(part)
    _check_lz4_end(frame, is_whole=position == len(view))
    return size


def _check_lz4(data: Buffer) -> None:
    if len(data) > _LZ4_FLAGS_POSITION and not data[_LZ4_FLAGS_POSITION] & _LZ4_INDEPENDENT_BLOCKS:
        raise _broken(Compression.LZ4, "its blocks depend on each other, which Kafka's Java clients cannot read")


def _check_lz4_end(frame: lz4.frame.LZ4FrameDecompressor, *, is_whole: bool = True) -> None:
    if not frame.eof:
        raise _broken(Compression.LZ4, "it ends too early")
    if frame.unused_data or not is_whole:
        raise _broken(Compression.LZ4, "bytes follow the frame")


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytearray:
    """Read zstd frames into a buffer that grows until they fit: most producers do not write the size of the content."""
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
    """Read snappy-java's blocks, or one raw snappy block when its header is not there."""
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
    """What a block's first bytes claim to be the size of its content, so a lie costs no memory above `room`."""
    try:
        size: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _broken(Compression.SNAPPY, error) from error
    if size > room:
        raise _too_large(Compression.SNAPPY, max_bytes)
    return size


def _raw_snappy_into(block: memoryview, content: bytearray | memoryview) -> None:
    """Fill `content`, which is as long as the block claims."""
    try:
        written = cramjam.snappy.decompress_raw_into(block, content)
    except cramjam.DecompressionError as error:
        raise _broken(Compression.SNAPPY, error) from error
    if written != len(content):
        raise _broken(Compression.SNAPPY, f"{written} bytes instead of {len(content)}")
