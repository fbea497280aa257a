"""Codecs: other implementations read what is written, and no input makes the reader use more than its limit."""

from __future__ import annotations

import gzip
import tracemalloc
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import lz4.frame  # type: ignore[import-untyped]
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.compression import (
    Compression,
    CompressionError,
    DecompressedTooLargeError,
    compress,
    decompress,
    decompress_into,
)
from lowtide.protocol.errors import ProtocolError
from tests.own_process import Run

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas by a deprecated function.
    from kafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]


def into(codec: Compression, data: bytes | bytearray | memoryview, *, max_bytes: int) -> bytes:
    """`decompress_into`, called like `decompress`; it writes nothing behind its buffer."""
    if codec is Compression.NONE:
        return bytes(decompress(codec, data, max_bytes=max_bytes))
    room = bytearray(b"\xaa" * (max_bytes + 64))
    try:
        return bytes(decompress_into(codec, data, memoryview(room)[:max_bytes]))
    finally:
        assert room[max_bytes:] == b"\xaa" * 64


Form = Callable[..., Any]
FORMS: list[Form] = [decompress, into]
TEXT = b"".join(b"%d low tide " % number for number in range(20_000))
"""More than one block of snappy's 32 KiB and of LZ4's 64 KiB."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=300).map(lambda part: part * 7))
def test_compressed_data_is_read_back(form: Form, codec: Compression, data: bytes) -> None:
    """Protects the pair of writer and reader, also for empty input and with a limit that fits exactly."""
    assert form(codec, compress(codec, data), max_bytes=len(data)) == data


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("view", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_is_accepted(form: Form, codec: Compression, view: type) -> None:
    """Protects the broker's path, which passes views of a bytearray."""
    assert form(codec, view(compress(codec, view(TEXT))), max_bytes=len(TEXT)) == TEXT


def test_a_client_reads_what_we_write() -> None:
    """Protects the framings: kafka-python's decoders read each codec, over several blocks."""
    readers = {
        Compression.GZIP: gzip_decode,
        Compression.SNAPPY: snappy_decode,
        Compression.LZ4: lz4_decode,
        Compression.ZSTD: zstd_decode,
    }
    for codec, read in readers.items():
        assert bytes(read(compress(codec, TEXT))) == TEXT


def test_snappy_is_written_in_blocks_of_32_kib() -> None:
    """Protects the header and the block size that snappy-java's reader expects."""
    framed = compress(Compression.SNAPPY, TEXT)
    assert framed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(framed[16:20], "big")
    assert snappy.uncompress(framed[20 : 20 + first]) == TEXT[: 32 * 1024]


def test_lz4_is_written_as_independent_blocks_without_content_size() -> None:
    """Protects Java consumers, whose reader supports only independent blocks."""
    flags = compress(Compression.LZ4, TEXT)[4]
    assert flags & 0x20
    assert not flags & 0x08


FOREIGN: dict[str, tuple[Compression, Callable[[], bytes]]] = {
    "gzip members": (Compression.GZIP, lambda: gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])),
    "raw snappy": (Compression.SNAPPY, lambda: snappy.compress(TEXT)),
    "lz4 checksums": (
        Compression.LZ4,
        lambda: lz4.frame.compress(
            TEXT, block_linked=False, content_checksum=True, block_checksum=True, store_size=True
        ),
    ),
    "lz4 4 MiB blocks": (
        Compression.LZ4,
        lambda: lz4.frame.compress(TEXT, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    ),
    "zstd no size": (Compression.ZSTD, lambda: zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)),
    "zstd level 22": (
        Compression.ZSTD,
        lambda: zstandard.ZstdCompressor(level=22, write_checksum=True).compress(TEXT),
    ),
}
"""How other writers compress TEXT. Not done on import, for the workers that collect this file and don't run it."""


@pytest.mark.parametrize("writer", FOREIGN)
def test_forms_of_other_writers_are_read(writer: str) -> None:
    """Protects clients whose compressors use other options than ours."""
    codec, compressed = FOREIGN[writer]
    data = compressed()
    for form in FORMS:
        assert form(codec, data, max_bytes=len(TEXT)) == TEXT, form


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", CODECS)
def test_every_cut_is_noticed(form: Form, codec: Compression) -> None:
    """Protects the log from a batch whose end is missing: no codec may return a partial result."""
    whole = compress(codec, b"abcdefghij" * 5)
    for size in range(len(whole)):
        if codec is Compression.SNAPPY and size == 16:
            continue  # The framing's header alone is the framing of empty data.
        with pytest.raises(CompressionError):
            form(codec, whole[:size], max_bytes=1000)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rest", [b"\x00", b"trailing bytes"])
def test_bytes_behind_the_end_are_refused(form: Form, codec: Compression, rest: bytes) -> None:
    """Protects readers that would accept, or fail on, bytes behind the frame."""
    with pytest.raises(CompressionError):
        form(codec, compress(codec, TEXT) + rest, max_bytes=2 * len(TEXT))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200))
def test_garbage_raises_nothing_but_protocol_errors(form: Form, codec: Compression, data: bytes) -> None:
    """Protects the produce path, which turns exactly these errors into a response."""
    try:
        content = form(codec, data, max_bytes=4096)
    except ProtocolError:
        return
    assert len(content) <= 4096


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", CODECS)
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_changed_byte_raises_nothing_but_protocol_errors(
    form: Form, codec: Compression, place: int, byte: int
) -> None:
    """Protects against the library errors that nearly valid input provokes and random bytes do not."""
    damaged = bytearray(compress(codec, TEXT[:3000]))
    damaged[place % len(damaged)] = byte
    try:
        content = form(codec, damaged, max_bytes=3000)
    except ProtocolError:
        return
    assert len(content) <= 3000


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", Compression)
def test_one_byte_above_the_limit_is_too_large(form: Form, codec: Compression) -> None:
    """Protects the limit's edge, and its error, also that of cramjam, whose message could change."""
    with pytest.raises(DecompressedTooLargeError, match=str(len(TEXT) - 1)):
        form(codec, compress(codec, TEXT), max_bytes=len(TEXT) - 1)


def peak_of_a_bomb(codec: Compression) -> int:
    """The most bytes that were allocated."""
    bomb = compress(codec, bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(DecompressedTooLargeError):
        decompress(codec, bomb, max_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_costs_no_memory(in_own_process: Run, codec: Compression) -> None:
    """Protects the broker's memory: a small request with 64 MiB of zeros must not be decompressed before the check."""
    assert in_own_process(peak_of_a_bomb, codec) < 8 << 20


@pytest.mark.parametrize("form", FORMS)
def test_a_false_snappy_length_uses_no_memory(form: Form) -> None:
    """Protects against a block of a few bytes that claims four gigabytes."""
    with pytest.raises(DecompressedTooLargeError):
        form(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(20), max_bytes=1 << 20)


@pytest.mark.parametrize("form", FORMS)
def test_the_limit_spans_snappy_blocks(form: Form) -> None:
    """Protects against many blocks that are each below the limit."""
    with pytest.raises(DecompressedTooLargeError):
        form(Compression.SNAPPY, compress(Compression.SNAPPY, bytes(100_000)), max_bytes=40_000)


@pytest.mark.parametrize("form", FORMS)
def test_the_limit_spans_gzip_members(form: Form) -> None:
    """Protects against many members that are each below the limit."""
    with pytest.raises(DecompressedTooLargeError):
        form(Compression.GZIP, gzip.compress(bytes(100)) * 9, max_bytes=500)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [0, -1, 1000])
def test_a_snappy_block_that_does_not_fit_is_broken(form: Form, length: int) -> None:
    """Protects the walk over the blocks from lengths that lead back, nowhere, or out of the data."""
    framed = (
        compress(Compression.SNAPPY, b"abc")[:16]
        + length.to_bytes(4, "big", signed=True)
        + bytes(snappy.compress(b"abc"))
    )
    with pytest.raises(CompressionError):
        form(Compression.SNAPPY, framed, max_bytes=1000)


@pytest.mark.parametrize("form", FORMS)
def test_linked_lz4_blocks_are_refused(form: Form) -> None:
    """Protects Java consumers, which cannot read them; Kafka refuses them too."""
    linked = lz4.frame.compress(TEXT, block_linked=True)
    with pytest.raises(CompressionError, match="depend"):
        form(Compression.LZ4, linked, max_bytes=len(TEXT))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("window_log", [28, 31])
def test_a_zstd_window_above_128_mib_is_refused(form: Form, window_log: int) -> None:
    """Protects memory: a frame of nine bytes may ask for a window of gigabytes."""
    frame = b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3]) + b"\x01\x00\x00"
    with pytest.raises(CompressionError, match="memory"):
        form(Compression.ZSTD, frame, max_bytes=1000)


@pytest.mark.parametrize("form", FORMS)
def test_zstd_content_far_above_the_first_guess_is_read(form: Form) -> None:
    """Protects the growing buffer: zeros shrink a thousandfold, the guess is eightfold."""
    content = bytes(10 << 20)
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    assert form(Compression.ZSTD, frame, max_bytes=16 << 20) == content


@pytest.mark.parametrize("form", FORMS)
def test_zlib_without_gzip_header_is_broken(form: Form) -> None:
    """Protects the choice of header: Kafka's gzip is gzip."""
    with pytest.raises(CompressionError):
        form(Compression.GZIP, zlib.compress(TEXT), max_bytes=len(TEXT))


def test_cramjam_still_bounds_its_window() -> None:
    """Protects the claim in the module's table, which depends on cramjam."""
    with pytest.raises(cramjam.DecompressionError):
        cramjam.zstd.decompress_into(b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3]) + b"\x01\x00\x00", bytearray(10))


TINY = 40_000
"""Pieces; each took Python's time, and in gzip a copy of the rest: minutes for four megabytes."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Compression.GZIP, gzip.compress(b"", mtime=0) * TINY),
        (Compression.GZIP, gzip.compress(b"x", mtime=0) * TINY),
        (Compression.SNAPPY, compress(Compression.SNAPPY, b"")[:16] + b"\0\0\0\1\0" * TINY),
        (
            Compression.SNAPPY,
            compress(Compression.SNAPPY, b"")[:16] + (b"\0\0\0\3" + bytes(snappy.compress(b"x"))) * TINY,
        ),
    ],
    ids=["empty members", "members of a byte", "empty blocks", "blocks of a byte"],
)
def test_a_content_in_tiny_pieces_is_refused(form: Form, codec: Compression, data: bytes) -> None:
    """Protects the event loop: the time for pieces must be proportional to their bytes."""
    with pytest.raises(CompressionError, match=r"bytes in \d+ pieces"):
        form(codec, data, max_bytes=1 << 20)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200), room=st.integers(0, 300))
def test_both_forms_agree_on_garbage(codec: Compression, data: bytes, room: int) -> None:
    """Protects batches from having another outcome in the worker than in the event loop."""
    outcomes = []
    for form in FORMS:
        try:
            outcomes.append(bytes(form(codec, data, max_bytes=room)))
        except CompressionError as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("codec", CODECS)
def test_a_content_of_many_pieces_is_read_into_a_buffer(codec: Compression) -> None:
    """Protects reading piece by piece, with data that compresses badly and ends inside a piece."""
    content = b"".join(zlib.crc32(b"%d" % number).to_bytes(4, "big") for number in range(300_001)) + bytes(900_000)
    assert into(codec, compress(codec, content), max_bytes=len(content)) == content
    assert into(codec, compress(codec, content), max_bytes=len(content) + 1000) == content
    with pytest.raises(DecompressedTooLargeError):
        into(codec, compress(codec, content), max_bytes=len(content) - 1)
