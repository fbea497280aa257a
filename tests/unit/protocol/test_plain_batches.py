"""The batches that a broker writes itself: byte for byte the result of the general builder, in both forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.plain_batches import encode_plain_batch
from lowtide.protocol.records import CONTROL_BIT, MAGIC_POSITION, TRANSACTIONAL_BIT

from .columns import needs_compiled

pytestmark = pytest.mark.usefixtures("walk_form")

NOW = 1_700_000_000_000
CONTENT = st.none() | st.binary(max_size=200) | st.integers(0, 3000).map(bytes)
RECORDS = st.lists(st.tuples(CONTENT, CONTENT), min_size=1, max_size=20)


@given(RECORDS, st.integers(0, 2**62), st.integers(-1, 2**62), st.integers(-1, 2**15 - 1), st.booleans(), st.booleans())
@example([(b"k", None)] * 2000, NOW, -1, -1, False, False)
def test_the_bytes_are_those_of_any_batch(
    records: list[tuple[bytes | None, bytes | None]],
    now: int,
    producer_id: int,
    epoch: int,
    transactional: bool,
    control: bool,
) -> None:
    """Protects the format: a coordinator's records are read by Kafka's tools, and by the next coordinator."""
    attributes = TRANSACTIONAL_BIT * transactional | CONTROL_BIT * control
    tail = encode_plain_batch(records, now, producer_id=producer_id, producer_epoch=epoch, attributes=attributes)
    rows = [(now, key, value, ()) for key, value in records]
    whole = build_batch(
        rows, producer_id=producer_id, producer_epoch=epoch, is_transactional=transactional, is_control=control
    )
    assert tail == whole[MAGIC_POSITION:]


@needs_compiled
def test_what_is_not_plain_is_left_to_the_plain_form() -> None:
    """Protects the C code: it reads only lists of pairs of bytes, and leaves other input to the plain form."""
    if native.compiled is None:
        pytest.skip("the plain form is in use")
    compiled = native.compiled.plain_records
    strange: list[Any] = [
        (b"k",),
        (b"k", b"v", b"x"),
        [b"k", b"v"],
        (b"k", "v"),
        (1, b"v"),
        (bytearray(b"k"), b"v"),
        None,
    ]
    assert [compiled(b"", [(b"k", b"v"), pair]) for pair in strange] == [None] * len(strange)
    no_lists: list[Any] = [((b"k", b"v"),), None, b"kv", {}]
    assert [compiled(b"", rows) for rows in no_lists] == [None] * len(no_lists)
    assert [compiled(head, []) for head in (bytearray(b"h"), None, "h")] == [None] * 3
    assert compiled(b"head", []) == b"head"
    with pytest.raises(TypeError):
        compiled(b"head")  # type: ignore[call-arg]
