"""Varints by hand and by property, and the bounds of strings."""

from __future__ import annotations

import io
from mmap import mmap

import construct
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.constructs import Blob, Text
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.primitives import (
    STRING_BYTES_MAX,
    continue_string_length,
    read_varint,
    skip_tags,
    spanned,
    string_prefix,
    unsigned_varint,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (4095, "ff1f"),
        (4096, "8020"),
        (2**31 - 1, "ffffffff07"),
    ],
)
def test_varints_by_hand(number, text) -> None:
    """Seven bits a byte, lowest first: the protocol guide's examples and the edges of our table."""
    encoded = bytes.fromhex(text)
    assert unsigned_varint(number) == encoded
    assert read_varint(b"\xee" + encoded + b"\xee", 1) == (number, 1 + len(encoded))


@given(st.integers(0, 2**32 - 1))
def test_varints_round_trip(number) -> None:
    """Any number is read back, and takes as few bytes as possible."""
    encoded = unsigned_varint(number)
    assert read_varint(encoded, 0) == (number, len(encoded))
    assert len(encoded) == max(1, -(-number.bit_length() // 7))


def test_a_varint_may_be_longer_than_needed_but_not_endless() -> None:
    """Kafka accepts padding up to five bytes; a sixth is an error, and a cut varint is an IndexError for the caller."""
    assert read_varint(bytes.fromhex("8000"), 0) == (0, 2)
    assert read_varint(bytes.fromhex("8080808000"), 0) == (0, 5)
    with pytest.raises(ProtocolError):
        read_varint(bytes.fromhex("808080808000"), 0)
    with pytest.raises(IndexError):
        read_varint(bytes.fromhex("80"), 0)


def test_the_longest_string() -> None:
    """32,767 bytes in the fixed encoding and in the compact one, written and read; one more byte is refused by both."""
    longest = "é" * (STRING_BYTES_MAX // 2) + "x"
    for compact in (False, True):
        form = Text(compact=compact, nullable=False)
        assert form.parse(form.build(longest)) == longest
        with pytest.raises(construct.ConstructError):
            form.build(longest + "x")
    with pytest.raises(construct.ConstructError):
        Text(compact=True, nullable=False).parse(unsigned_varint(STRING_BYTES_MAX + 2) + bytes(40_000))
    assert string_prefix(STRING_BYTES_MAX + 1) == unsigned_varint(STRING_BYTES_MAX + 1)
    with pytest.raises(ValueError, match="32768 bytes"):
        string_prefix(STRING_BYTES_MAX + 2)
    prefix = unsigned_varint(STRING_BYTES_MAX + 1)
    assert continue_string_length(prefix, 1, prefix[0]) == (STRING_BYTES_MAX + 1, len(prefix))
    prefix = unsigned_varint(STRING_BYTES_MAX + 2)
    with pytest.raises(ProtocolError, match="32768 bytes"):
        continue_string_length(prefix, 1, prefix[0])


@pytest.mark.parametrize(("compact", "null"), [(False, "ffffffff"), (True, "00")])
def test_null_and_empty_bytes_differ(compact, null) -> None:
    """Null is -1 or 0, empty 0 or 1; null is refused if the field is not nullable, when read and when written."""
    nullable, required = (Blob(compact=compact, nullable=answer, is_view=False) for answer in (True, False))
    assert nullable.build(None).hex() == null
    assert nullable.parse(nullable.build(None)) is None
    assert nullable.parse(nullable.build(b"")) == required.parse(required.build(b"")) == b""
    for action in (lambda: required.build(None), lambda: required.parse(bytes.fromhex(null))):
        with pytest.raises(construct.ConstructError):
            action()


def test_skipping_tags() -> None:
    """Returns the end of a section, refuses a tag beyond the end, and raises IndexError for a truncated section."""
    section = bytes.fromhex("02 05 01 ff 8101 00")
    assert skip_tags(section, 1, section[0], len(section)) == len(section)
    long_count = b"\x80\x01" + bytes.fromhex("07 00") * 128
    assert skip_tags(long_count, 1, long_count[0], len(long_count)) == len(long_count)
    with pytest.raises(ProtocolError):
        skip_tags(bytes.fromhex("01 05 02 ff"), 1, 1, 4)
    with pytest.raises(IndexError):
        skip_tags(bytes.fromhex("02 05 01 ff"), 1, 2, 4)


def test_a_view_of_the_whole_is_not_copied() -> None:
    """Only a view of a part, or one with a negative stride, is copied."""
    whole = bytearray(b"abcd")
    view = memoryview(whole)
    assert spanned(view) is whole
    assert spanned(view[1:]) == b"bcd"
    assert spanned(view[::-1]) == b"dcba"
    assert spanned(memoryview(io.BytesIO(b"xy").getbuffer())) == b"xy"
    mapping = mmap(-1, 3)
    assert spanned(memoryview(mapping)) is mapping, "a large frame is mapped"
