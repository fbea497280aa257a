"""Frames: a size that does not include itself; sizes that are not allowed are refused.

`client/test_connection.py` splits streams.
"""

from __future__ import annotations

import pytest

from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.headers import FRAME_BYTES_MAX, check_frame_size, frame


def test_a_frame_by_hand() -> None:
    """Four bytes of size, which do not include themselves; a frame of several parts is one frame."""
    assert frame(b"\xab", b"", b"\xcd").hex(" ") == "00 00 00 02 ab cd"
    assert frame().hex(" ") == "00 00 00 00"


def test_the_limit_is_inclusive() -> None:
    assert check_frame_size(FRAME_BYTES_MAX, FRAME_BYTES_MAX) == FRAME_BYTES_MAX
    assert check_frame_size(0, 3) == 0
    with pytest.raises(ProtocolError, match="4 bytes; allowed are 0 to 3"):
        check_frame_size(4, 3)
    for size in (-1, -(2**31), FRAME_BYTES_MAX + 1):
        with pytest.raises(ProtocolError):
            check_frame_size(size, FRAME_BYTES_MAX)
