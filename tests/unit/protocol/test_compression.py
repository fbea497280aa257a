"""Codecs: what is written is read back by others, and no input makes the reader hold more than its limit."""

from __future__ import annotations

import gzip
import tracemalloc
import warnings
import zlib

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.compression import Compression, CompressionError, DecompressedTooLargeError, compress, decompress
from lowtide.protocol.errors import ProtocolError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas by a deprecated function.
    from kafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
TEXT = b"".join(b"%d low tide " % number for number in range(20_000))
"""More than one block of snappy's 32 KiB and of LZ4's 64 KiB."""


@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=300).map(lambda part: part * 7))
def test_what_is_compressed_comes_back(codec: Compression, data: bytes) -> None:
    """Protects the pair of writer and reader, also for empty input and with a limit that fits exactly."""
    assert decompress(codec, compress(codec, data), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("view", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_taken(codec: Compression, view: type) -> None:
    """Protects the broker's path, which hands over views of a bytearray."""
    assert decompress(codec, view(compress(codec, view(TEXT))), max_bytes=len(TEXT)) == TEXT


def test_a_client_reads_what_we_write() -> None:
    """Protects the framings: kafka-python's decoders read each codec, over several blocks."""
    readers = {Compression.GZIP: gzip_decode, Compression.SNAPPY: snappy_decode, Compression.LZ4: lz4_decode, Compression.ZSTD: zstd_decode}
    for codec, read in readers.items():
        assert bytes(read(compress(codec, TEXT))) == TEXT


def test_snappy_is_written_in_blocks_of_32_kib() -> None:
    """Protects the header and the block size that snappy-java's reader expects."""
    framed = compress(Compression.SNAPPY, TEXT)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(framed[16:20], "big")
    assert snappy.uncompress(framed[20 : 20 + first]) == TEXT[: 32 * 1024]


def test_lz4_is_written_as_independent_blocks_without_content_size() -> None:
    """Protects Java consumers, whose reader knows independent blocks only."""
    flags = compress(Compression.LZ4, TEXT)[4]
    assert flags & 0x20
    assert not flags & 0x08


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Compression.GZIP, gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])),
        (Compression.SNAPPY, snappy.compress(TEXT)),
        (Compression.LZ4, lz4.frame.compress(TEXT, block_linked=False, content_checksum=True, block_checksum=True, store_size=True)),
        (Compression.LZ4, lz4.frame.compress(TEXT, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB)),
        (Compression.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
        (Compression.ZSTD, zstandard.ZstdCompressor(level=22, write_checksum=True).compress(TEXT)),
    ],
    ids=["gzip members", "raw snappy", "lz4 checksums", "lz4 4 MiB blocks", "zstd no size", "zstd level 22"],
)
def test_forms_other_writers_use_are_read(codec: Compression, data: bytes) -> None:
    """Protects clients whose compressors make other choices than ours."""
    assert decompress(codec, data, max_bytes=len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_noticed(codec: Compression) -> None:
    """Protects the log from a batch whose end is missing: no codec may answer with what it has got so far."""
    whole = compress(codec, b"abcdefghij" * 5)
    for size in range(len(whole)):
        if codec is Compression.SNAPPY and size == 16:
            continue  # The framing's header alone is the framing of nothing.
        with pytest.raises(CompressionError):
            decompress(codec, whole[:size], max_bytes=1000)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rest", [b"\x00", b"trailing bytes"])
def test_bytes_behind_the_end_are_refused(codec: Compression, rest: bytes) -> None:
    """Protects readers that would take, or stumble over, what follows the frame."""
    with pytest.raises(CompressionError):
        decompress(codec, compress(codec, TEXT) + rest, max_bytes=2 * len(TEXT))


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
def test_garbage_raises_nothing_but_protocol_errors(codec: Compression, data: bytes) -> None:
    """Protects the produce path, which turns exactly this family of errors into an answer."""
    try:
        content = decompress(codec, data, max_bytes=4096)
    except ProtocolError:
        return
    assert len(content) <= 4096


@pytest.mark.parametrize("codec", CODECS)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_raises_nothing_but_protocol_errors(codec: Compression, place: int, byte: int) -> None:
    """Protects against the library errors that nearly valid input provokes and random bytes do not."""
    damaged = bytearray(compress(codec, TEXT[:3000]))
    damaged[place % len(damaged)] = byte
    try:
        content = decompress(codec, damaged, max_bytes=3000)
    except ProtocolError:
        return
    assert len(content) <= 3000


@pytest.mark.parametrize("codec", Compression)
def test_one_byte_above_the_limit_is_too_large(codec: Compression) -> None:
    """Protects the limit's edge, and the error that says so: also of cramjam, whose words for it could change."""
    with pytest.raises(DecompressedTooLargeError, match=str(len(TEXT) - 1)):
        decompress(codec, compress(codec, TEXT), max_bytes=len(TEXT) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_memory(codec: Compression) -> None:
    """Protects the broker's memory: 64 MiB of zeros in a small request must not become 64 MiB before the limit is looked at."""
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLargeError):
            decompress(codec, bomb, max_bytes=1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_a_snappy_length_that_lies_costs_no_memory() -> None:
    """Protects against a block of a few bytes that claims four gigabytes."""
    with pytest.raises(DecompressedTooLargeError):
        decompress(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20), max_bytes=1 << 20)


def test_the_limit_spans_snappy_blocks() -> None:
    """Protects against many blocks that are each below the limit."""
    with pytest.raises(DecompressedTooLargeError):
        decompress(Compression.SNAPPY, compress(Compression.SNAPPY, bytes(100_000)), max_bytes=40_000)


def test_the_limit_spans_gzip_members() -> None:
    """Protects against many members that are each below the limit."""
    with pytest.raises(DecompressedTooLargeError):
        decompress(Compression.GZIP, gzip.compress(bytes(100)) * 9, max_bytes=500)


@pytest.mark.parametrize("length", [0, -1, 1000])
def test_a_snappy_block_that_does_not_fit_is_broken(length: int) -> None:
    """Protects the walk over the blocks from lengths that lead back, nowhere, or out of the data."""
    framed = compress(Compression.SNAPPY, b"abc")[:16] + length.to_bytes(4, "big", signed=True) + bytes(snappy.compress(b"abc"))
    with pytest.raises(CompressionError):
        decompress(Compression.SNAPPY, framed, max_bytes=1000)


def test_linked_lz4_blocks_are_refused() -> None:
    """Protects Java consumers, which cannot read them; Kafka refuses them too."""
    linked = lz4.frame.compress(TEXT, block_linked=True)
    with pytest.raises(CompressionError, match="depend"):
        decompress(Compression.LZ4, linked, max_bytes=len(TEXT))


@pytest.mark.parametrize("window_log", [28, 31])
def test_a_zstd_window_above_128_mib_is_refused(window_log: int) -> None:
    """Protects memory: a frame of nine bytes may ask for a window of gigabytes."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(CompressionError, match="memory"):
        decompress(Compression.ZSTD, frame, max_bytes=1000)


def test_zstd_content_far_above_the_first_guess_is_read() -> None:
    """Protects the growing buffer: zeros shrink a thousandfold, the guess is eightfold."""
    content = bytes(10 << 20)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    assert decompress(Compression.ZSTD, frame, max_bytes=16 << 20) == content


def test_zlib_without_gzip_header_is_broken() -> None:
    """Protects the choice of header: Kafka's gzip is gzip."""
    with pytest.raises(CompressionError):
        decompress(Compression.GZIP, zlib.compress(TEXT), max_bytes=len(TEXT))


def test_cramjam_still_bounds_its_window() -> None:
    """Protects the claim in the module's table, which is cramjam's doing and not ours."""
    with pytest.raises(cramjam.DecompressionError):
        cramjam.zstd.decompress_into(b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + b"\x01\x00\x00", bytearray(10))
