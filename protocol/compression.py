"""The compression codecs of record batches, decompressing only as far as a limit allows.

Invariant: `decompress` never hands out, and never holds, much more than `max_bytes`, whatever the compressed bytes claim. The
sender chooses those bytes, so a small request must not become gigabytes of memory.

Which library, and why:

| codec  | library       | reason                                                                                                  |
|--------|---------------|---------------------------------------------------------------------------------------------------------|
| gzip   | zlib          | in the standard library, streams, stops at a maximum length                                             |
| snappy | cramjam       | writes into a buffer of ours, whose size the block's own header gives                                   |
| lz4    | lz4           | streams and stops at a maximum length; cramjam costs four times as much to read and ten times to write  |
| zstd   | cramjam       | writes into a buffer of ours and refuses windows above 128 MiB, as Kafka's Java library does            |

Framing. Snappy is written as snappy-java's `SnappyOutputStream` does, because Kafka's consumers expect it: the 16 bytes
`82 53 4e 41 50 50 59 00 | version 1 | compatible version 1`, then blocks of at most 32 KiB, each `int32 length | raw snappy`.
Raw snappy without that header is read too, for librdkafka and old clients write it. LZ4 is one frame of independent blocks:
Kafka's Java reader knows no others (`Lz4BlockInputStream`).

Does not choose levels: each codec's default is used.
"""

from __future__ import annotations

import zlib
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

    Errors: DecompressedTooLargeError above the limit; CompressionError when the bytes are broken, cut short, or go on behind
    their end.
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


def _too_large(codec: Compression, max_bytes: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"{codec.name.lower()} data is larger than {max_bytes} bytes when decompressed")


def _broken(codec: Compression, why: object) -> CompressionError:
    return CompressionError(f"broken {codec.name.lower()} data: {why}")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """Read one or more gzip members (RFC 1952 allows several; Java's reader joins them)."""
    parts: list[bytes] = []
    room = max_bytes + 1
    rest: Buffer = data
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            part = member.decompress(rest, room)
        except zlib.error as error:
            raise _broken(Compression.GZIP, error) from error
        room -= len(part)
        if room <= 0:
            raise _too_large(Compression.GZIP, max_bytes)
        parts.append(part)
        if not member.eof:
            raise _broken(Compression.GZIP, "it ends too early")
        rest = member.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    """Read one LZ4 frame."""
    if len(data) > _LZ4_FLAGS_POSITION and not data[_LZ4_FLAGS_POSITION] & _LZ4_INDEPENDENT_BLOCKS:
        raise _broken(Compression.LZ4, "its blocks depend on each other, which Kafka's Java clients cannot read")
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        content: bytes = frame.decompress(data, max_length=max_bytes + 1)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _broken(Compression.LZ4, error) from error
    if len(content) > max_bytes:
        raise _too_large(Compression.LZ4, max_bytes)
    if not frame.eof:
        raise _broken(Compression.LZ4, "it ends too early")
    if frame.unused_data:
        raise _broken(Compression.LZ4, "bytes follow the frame")
    return content


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
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_raw_snappy(view, max_bytes, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise _broken(Compression.SNAPPY, "its header is cut")
    parts: list[bytes | bytearray] = []
    room = max_bytes
    position = len(_XERIAL_HEADER)
    while position < len(view):
        start = position + 4
        position = start + int.from_bytes(view[start - 4 : start], "big")
        if start >= position or position > len(view):
            raise _broken(Compression.SNAPPY, f"a block of {position - start} bytes does not fit")
        part = _decompress_raw_snappy(view[start:position], room, max_bytes)
        room -= len(part)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_raw_snappy(block: memoryview, room: int, max_bytes: int) -> bytearray:
    """Read one raw block; its first bytes say how long the content is, so a lie costs no memory above `room`."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > room:
            raise _too_large(Compression.SNAPPY, max_bytes)
        content = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, content)
    except cramjam.DecompressionError as error:
        raise _broken(Compression.SNAPPY, error) from error
    if written != size:
        raise _broken(Compression.SNAPPY, f"{written} bytes instead of {size}")
    return content
