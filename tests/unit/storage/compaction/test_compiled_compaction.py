"""Compiled compaction leaves the same bytes as plain Python, for valid batches and for any others."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol import native
from lowtide.protocol.batch_building import append_record, assemble_batch, build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.errors import ProtocolError
from lowtide.protocol.record_keys import RecordKeys
from lowtide.protocol.records import DELETE_HORIZON_BIT, RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.storage.compaction.compaction import CompactionRules, compact_batch, note_batch
from lowtide.storage.compaction.offset_map import ENTRY_BYTES, OffsetMap
from tests.examples import examples

COMPILED = native.compiled
LIMIT = 1 << 20
NOW_MS = 1_000_000

pytestmark = pytest.mark.skipif(COMPILED is None, reason="the compiled form wasn't built")

KEYS = (
    st.none()
    | st.sampled_from([b"", b"a", b"b", b"c", b"key of more than eight bytes", bytes(130)])
    | st.binary(max_size=2)
)
VALUES = st.none() | st.binary(max_size=3) | st.just(bytes(200))
BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(KEYS, VALUES, st.integers(-5, 5) | st.integers(-(2**62), 2**62), st.integers(1, 3)),
            min_size=1,
            max_size=8,
        ),
        st.booleans(),  # whether its tombstones may go
        st.sampled_from([Compression.NONE, Compression.NONE, Compression.LZ4]),
        st.integers(0, 3),  # offsets before it
        st.lists(st.tuples(st.integers(0, 2**12), st.integers(0, 255)), max_size=1),  # damage
    ),
    min_size=1,
    max_size=6,
)


def batches_of(described: list[Any]) -> list[bytes]:
    """Records are key, value, timestamp delta, and how far their offset is from the one before."""
    batches, base_offset = [], 0
    for records, has_horizon, codec, gap, damage in described:
        base_offset += gap
        payload, delta = bytearray(), -1
        for key, value, timestamp, step in records:
            delta += step
            append_record(payload, timestamp, delta, key, value, headers=[(b"h", key)] if step > 2 else ())
        for position, byte in damage:
            payload[position % len(payload)] = byte
        batch = bytearray(
            build_batch([(1000, None, b"", ())] * (delta + 1), base_offset=base_offset, compression=codec)
        )
        header = read_batch_header(batch)
        header.record_count = len(records)
        header.attributes |= DELETE_HORIZON_BIT if has_horizon else 0
        if codec is Compression.LZ4:
            sound = build_batch(
                [(1000 + row[2] % 1000, row[0], row[1], ()) for row in records],
                base_offset=base_offset,
                compression=codec,
            )
            payload, delta = bytearray(sound[RECORD_BATCH_OVERHEAD:]), len(records) - 1
            header.last_offset_delta = delta
        batches.append(assemble_batch(header, payload))
        base_offset += delta + 1
    return batches


def compacted(batches: list[bytes], room: int, dirty: int, retention_ms: int) -> list[Any]:
    """The batches that remain, the contents of the map, and the errors."""
    offsets = OffsetMap(room * ENTRY_BYTES)
    found: list[Any] = []
    for batch in batches:
        try:
            has_room = note_batch(
                offsets, read_batch_header(batch), batch, dirty, aborted=False, decompressed_bytes_max=LIMIT
            )
        except ProtocolError as error:
            found.append(str(error))
            continue
        found.append((has_room, offsets.latest_offset, len(offsets)))
        if not has_room:
            break
    rules = CompactionRules(NOW_MS, retention_ms, {}, LIMIT)
    for number, batch in enumerate(batches):
        try:
            left = compact_batch(
                offsets, read_batch_header(batch), batch, rules, discarded=False, is_last=number == len(batches) - 1
            )
        except ProtocolError as error:
            found.append(str(error))
        else:
            found.append(left if left is None else bytes(left))
    return found


@settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(100))))
@given(
    described=BATCHES, room=st.integers(1, 4) | st.just(50), dirty=st.integers(0, 20), retention_ms=st.integers(0, 2000)
)
def test_what_is_left_is_the_same(described: Any, room: int, dirty: int, retention_ms: int) -> None:
    """Protects every rule of compaction in its fast form: superseded, keyless, tombstones, horizons, a full map."""
    batches = batches_of(described)
    compiled = compacted(batches, room, dirty, retention_ms)
    try:
        native.compiled = None  # type: ignore[misc]
        plain = compacted(batches, room, dirty, retention_ms)
    finally:
        native.compiled = COMPILED  # type: ignore[misc]
    assert compiled == plain


@pytest.mark.parametrize("deltas", [(0, 1 << 45, 2), (0, 2, 1), (-1, 0, 1)])
def test_offsets_that_do_not_rise_are_an_error(deltas: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the map from an offset that it has no room for: only the last one was compared with its span."""
    for each in (COMPILED, None):
        monkeypatch.setattr(native, "compiled", each)
        offsets = OffsetMap(10 * ENTRY_BYTES)
        found = RecordKeys([b"a", b"b", b"c"], list(deltas), [10, 20, 30], [], [])
        with pytest.raises(ProtocolError, match="do not rise"):
            offsets.note(found, 100, 0)


def test_a_map_grows_alike() -> None:
    """Protects large maps, whose table is copied many times, also in the middle of a batch."""
    batches = [
        build_batch(
            [(0, b"%d" % (number * 7 % 5000), b"v", ()) for number in range(base, base + 500)], base_offset=base
        )
        for base in range(0, 10_000, 500)
    ]
    compiled = compacted(batches, 5000, 0, 0)
    try:
        native.compiled = None  # type: ignore[misc]
        plain = compacted(batches, 5000, 0, 0)
    finally:
        native.compiled = COMPILED  # type: ignore[misc]
    assert compiled == plain
    assert compiled[19] == (True, 9999, 5000)
    assert compiled[20:29] == [None] * 9


def test_keys_with_one_place_are_told_apart() -> None:
    """Protects from confusing two keys: keys with the same slot of the table have separate entries."""
    offsets = OffsetMap(300_000 * ENTRY_BYTES)
    for base in range(0, 200_000, 1000):
        batch = build_batch(
            [(0, number.to_bytes(4, "little"), b"v", ()) for number in range(base, base + 1000)], base_offset=base
        )
        assert note_batch(offsets, read_batch_header(batch), batch, 0, aborted=False, decompressed_bytes_max=LIMIT)
    assert len(offsets) == 200_000
