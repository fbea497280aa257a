"""Records are shown unchanged, up to a limit, for any contents."""

from __future__ import annotations

import pytest

from lowtide.console.answers import RefusedError
from lowtide.console.records import HEADERS_MAX, SHOWN_BYTES_MAX, content, rows_of
from lowtide.protocol.batch_building import build_batch


def batch(*values: bytes | None, base_offset: int = 0) -> bytes:
    headers = [(b"h", b"v")] * (HEADERS_MAX + 5)
    records = [(1000 + index, b"k", value, headers) for index, value in enumerate(values)]
    return build_batch(records, base_offset=base_offset)


def test_rows_are_those_that_are_asked_for():
    rows, following = rows_of(batch(b"a", b"b", b"c", b"d"), 1, 4, 2)
    assert [row["offset"] for row in rows] == [1, 2]
    assert following == 3
    assert rows[0]["value"]["text"] == "b"
    assert len(rows[0]["headers"]) == HEADERS_MAX
    assert rows[0]["headers_left_out"] == 5


def test_a_batch_that_is_cut_off_is_said():
    with pytest.raises(RefusedError):
        rows_of(batch(b"a" * 100)[:40], 0, 1, 10)


def test_a_damaged_batch_is_said():
    damaged = bytearray(batch(b"a" * 100))
    damaged[-1] ^= 1
    with pytest.raises(RefusedError):
        rows_of(bytes(damaged), 0, 1, 10)


def test_bytes_come_in_every_form_that_they_have():
    assert content(None) is None
    assert content(b"\xff\x00") == {"bytes": 2, "hex": "ff00"}
    assert content(b"<b>") == {"bytes": 3, "hex": "3c623e", "text": "<b>"}
    assert content(b'{"a":1}') == {"bytes": 7, "hex": b'{"a":1}'.hex(), "text": '{"a":1}', "json": '{\n  "a": 1\n}'}


@pytest.mark.parametrize("value", [b"[" * 5000, b'{"a":' + b"9" * 5000 + b"}", b"[1,", b"{", b"[\xed\xa0\x80]"])
def test_what_is_no_readable_json_is_a_text_or_bytes(value):
    assert "json" not in (content(value) or {})


def test_a_long_value_is_cut():
    shown = content(b"x" * (SHOWN_BYTES_MAX + 1))
    assert shown["bytes"] == SHOWN_BYTES_MAX + 1
    assert len(shown["text"]) == SHOWN_BYTES_MAX
    assert len(shown["hex"]) == 2 * SHOWN_BYTES_MAX
