"""JSON of others: whatever is wrong with it is a ValueError, which all callers expect."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.runtime.json_text import decode_json


class Row(msgspec.Struct):
    name: str


def test_the_value_has_its_type() -> None:
    assert decode_json(b'{"name":"a"}', Row) == Row("a")
    assert decode_json('{"name":"a"}') == {"name": "a"}


@pytest.mark.parametrize("kind", [object, Row, list[str]])
@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"name":"\xff"}', b'["\xff"]', b'{"name":"\xed\xa0\x80"}', b"[" * 100_000, b'{"name":7, ']
)
def test_anything_else_is_a_value_error(content: bytes, kind: type) -> None:
    with pytest.raises(ValueError, match=r"\w") as refused:
        decode_json(content, kind)
    assert not isinstance(refused.value, UnicodeError)
