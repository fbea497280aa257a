"""Frames come out whole, in order and unchanged, however the stream is cut; sizes that aren't allowed stop it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.framing import FRAME_BYTES_MAX, NEED_DATA, FrameDecoder, check_frame_size, frame


def whole_frames(decoder: FrameDecoder) -> list[bytes]:
    """All frames that are there."""
    frames = []
    while (got := decoder.next_frame()) is not NEED_DATA:
        frames.append(got)
    return frames


@given(bodies=st.lists(st.binary(max_size=30), max_size=8), cuts=st.lists(st.integers(1, 12), min_size=1))
def test_any_cut_of_the_stream(bodies, cuts) -> None:
    """The frames don't depend on how the bytes arrive, and nothing is left behind."""
    stream = b"".join(frame(body) for body in bodies)
    decoder = FrameDecoder()
    got: list[bytes] = []
    position = 0
    while position < len(stream):
        size = cuts[position % len(cuts)]
        decoder.feed(stream[position : position + size])
        got += whole_frames(decoder)
        position += size
    assert got == bodies
    assert decoder.buffered_bytes == 0


def test_a_frame_by_hand() -> None:
    """Four bytes of size that don't count themselves; a frame of several parts is one frame."""
    assert frame(b"\xab", b"", b"\xcd").hex(" ") == "00 00 00 02 ab cd"
    assert frame().hex(" ") == "00 00 00 00"


def test_half_a_frame_waits() -> None:
    """Neither half a size nor half a body is a frame."""
    decoder = FrameDecoder()
    for part in (b"\x00\x00", b"\x00\x02\xab"):
        decoder.feed(part)
        assert decoder.next_frame() is NEED_DATA
    assert decoder.buffered_bytes == 5
    decoder.feed(b"\xcd\x00")
    assert decoder.next_frame() == b"\xab\xcd"
    assert decoder.next_frame() is NEED_DATA


def test_the_limit_is_inclusive() -> None:
    """A size is checked as soon as it's there, before its body is awaited."""
    decoder = FrameDecoder(limit=3)
    decoder.feed(frame(b"abc") + b"\x00\x00\x00\x04")
    assert decoder.next_frame() == b"abc"
    with pytest.raises(ProtocolError, match="4 bytes; allowed are 0 to 3"):
        decoder.next_frame()
    assert check_frame_size(FRAME_BYTES_MAX, FRAME_BYTES_MAX) == FRAME_BYTES_MAX
    for size in (-1, -(2**31), FRAME_BYTES_MAX + 1):
        with pytest.raises(ProtocolError):
            check_frame_size(size, FRAME_BYTES_MAX)
