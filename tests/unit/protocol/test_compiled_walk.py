"""The compiled walk has the same results as the plain one: for valid bytes, and for any others, with the same errors.

The plain form has its own tests. The tests here compare every byte of the columns, and every error.
WALK_EXAMPLES=100000 runs them longer.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.protocol import column_walk, compiled_columns, native
from lowtide.protocol.batch_building import append_record
from lowtide.protocol.column_walk import BatchRecords, RowRun
from lowtide.protocol.columns import BinaryInput, HeaderInput, RecordColumns, RecordRows
from lowtide.storage.log.validation.record_runs import RecordWalk
from lowtide.storage.log.validation.validator import walk_records
from tests.examples import examples

from .columns import COMPILED, buffers, needs_compiled, record_rows

SIZES = st.binary(max_size=5) | st.sampled_from([63, 64, 127, 128, 8191, 8192]).map(bytes)
FIELDS = st.none() | SIZES
HEADERS = st.lists(st.tuples(st.binary(max_size=4) | st.just(b"name"), FIELDS), max_size=3)
DELTAS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300) | st.sampled_from([63, 64, 8191, 8192, 2**31])
NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.integers(0, 30)
RECORDS = st.lists(st.tuples(DELTAS, NUMBERS | st.none(), FIELDS, FIELDS, HEADERS), max_size=12)
LONG = settings(deadline=None, max_examples=int(os.environ.get("WALK_EXAMPLES", examples(100))))


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """The return value, or the error."""
    try:
        return function(*arguments)
    except (ValueError, IndexError, OverflowError) as error:
        return type(error), str(error)


def both(function: Callable[[], Any]) -> tuple[Any, Any]:
    """The outcome with the compiled form, and without."""
    try:
        native.compiled = None  # type: ignore[misc]
        plain = outcome(function)
    finally:
        native.compiled = COMPILED  # type: ignore[misc]
    return outcome(function), plain


def walked(payload: bytes, count: int) -> RecordWalk:
    """The walk of the validator."""
    found = native.compiled.walk_records(payload, count) if native.compiled is not None else None
    return walk_records(payload, count) if found is None else RecordWalk(*found)


def payload_of(records: list[Any]) -> bytearray:
    """Records whose offset deltas are their numbers, unless they are given."""
    out = bytearray()
    for number, (timestamp, delta, key, value, headers) in enumerate(records):
        append_record(out, timestamp, number if delta is None else delta, key, value, headers=headers)
    return out


def damage(payload: bytearray, changes: list[tuple[int, int]], cut: int) -> bytes:
    """The same with some bytes changed and some missing."""
    for position, byte in changes:
        if payload:
            payload[position % len(payload)] = byte
    return bytes(payload[: len(payload) - cut])


CHANGES = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 255) | st.sampled_from([0x80, 0xFF, 0x7F, 1, 0])), max_size=4
)
CUTS = st.just(0) | st.integers(0, 20)


def test_it_is_built_where_it_can_be() -> None:
    """Protects speed, and the tests below: without it they are skipped.

    `make check` builds it again when its sources change.
    """
    has_headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    has_compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
    if (
        not has_headers
        or not has_compiler
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or os.environ.get(native.PURE_VARIABLE)
    ):
        pytest.skip("it can't be built here, or isn't wanted")
    assert native.compiled is not None, "it was not compiled, or from other sources: make check"


@needs_compiled
def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the option to run without the module if it has a bug."""
    monkeypatch.setenv("LOWTIDE_PURE", "1")
    assert native._load() is None
    monkeypatch.setenv("LOWTIDE_PURE", "0")
    assert native._load() is COMPILED


@needs_compiled
def test_a_module_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects from a module that is left from before an update: its functions take other arguments."""
    monkeypatch.setattr(COMPILED, "VERSION", native.VERSION + 1)
    assert native._load() is None


@needs_compiled
@pytest.mark.parametrize("years", [-1, 0, 1])
def test_a_module_for_a_later_python_is_not_used(monkeypatch: pytest.MonkeyPatch, years: int) -> None:
    """Protects the interpreter: headers of 3.12 left out references that 3.11 counts, and brokers died of it.

    Older headers are tested.
    """
    monkeypatch.setattr(native, "compiled", None)
    monkeypatch.setattr(COMPILED, "HEADERS", sys.hexversion + years * 0x10000)
    major, minor = sys.version_info[:2]
    expected = (
        f"it was compiled for Python {major}.{minor + 1}, and this is Python {major}.{minor}" if years > 0 else None
    )
    assert (native._load() is None) == (years > 0)
    assert native.why_plain() == expected


@needs_compiled
@LONG
@given(
    records=RECORDS,
    header=st.tuples(
        st.integers(0, 2**63 - 1 - 2**31) | st.integers(0, 40), st.integers(0, 40), st.integers(-(2**63), 2**63 - 1)
    ),
    append_time=st.none() | st.integers(-(2**63), 2**63 - 1),
    bounds=st.tuples(st.integers(0, 2**63 - 1) | st.integers(0, 40), st.integers(0, 2**63 - 1)),
    changes=CHANGES,
    cut=CUTS,
    more=st.integers(-1, 1),
    with_headers=st.booleans(),
)
def test_columns_are_the_same(
    records: Any, header: Any, append_time: Any, bounds: Any, changes: Any, cut: int, more: int, with_headers: bool
) -> None:
    """Protects readers: both forms write the same buffers, also to continued bitmaps, or raise the same error."""
    payload = damage(payload_of(records), changes, cut)
    base_offset, last_delta, base_timestamp = header
    count = max(0, len(records) + (more if changes else 0))
    batch = BatchRecords(payload, count, base_offset, last_delta, base_timestamp, append_time, *sorted(bounds))

    def run() -> Any:
        columns = RecordColumns(with_headers=with_headers)
        done = [outcome(compiled_columns.append_records, columns, batch) for _ in range(2)]
        return done, buffers(columns)

    compiled, plain = both(run)
    assert compiled == plain


@needs_compiled
@LONG
@given(records=RECORDS, changes=CHANGES, cut=CUTS, more=st.integers(-1, 1))
def test_what_is_validated_is_the_same(records: Any, changes: Any, cut: int, more: int) -> None:
    """Protects validation: the compiled form accepts exactly what the plain one accepts."""
    payload = damage(payload_of(records), changes, cut)
    count = max(1, len(records) + (more if changes else 0))
    compiled, plain = both(lambda: walked(payload, count))
    assert compiled == plain


@needs_compiled
@LONG
@given(
    records=st.lists(st.tuples(DELTAS, FIELDS, FIELDS, HEADERS), min_size=1, max_size=12),
    first=st.integers(0, 10),
    selected=st.none() | st.lists(st.integers(-1, 13), min_size=1, max_size=20),
    size=st.integers(0, 40_000) | st.integers(0, 200),
    start=st.integers(0, 3),
)
def test_batches_are_the_same(records: Any, first: int, selected: Any, size: int, start: int) -> None:
    """Protects writers: the same records, as many of them, or the same error."""
    numbers = None if selected is None else array("q", selected)
    total = len(records if selected is None else selected)
    start = min(start, total - 1)
    run = RowRun(record_rows(records, first=first), numbers, start, total - start, size, 77)

    def write() -> Any:
        out = bytearray(b"before")
        return outcome(compiled_columns.append_rows, out, run), bytes(out)

    compiled, plain = both(write)
    if isinstance(plain[0][0], int):
        assert compiled == plain
    else:
        assert compiled[0] == plain[0]


INT32 = st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 20)
INPUTS = st.builds(
    lambda offsets, values, validity, first: BinaryInput(
        offsets=array("i", offsets), values=values, validity=validity, first=first
    ),
    st.lists(INT32, max_size=6).map(sorted) | st.lists(INT32, max_size=6),
    st.binary(max_size=20),
    st.none() | st.binary(max_size=2),
    st.integers(-1, 3) | st.integers(-(2**62), 2**62),
)
HEADER_INPUTS = st.builds(
    lambda lists, names, contents: HeaderInput(
        offsets=lists.offsets, validity=lists.validity, first=lists.first, names=names, contents=contents
    ),
    *[INPUTS] * 3,
)


@needs_compiled
@LONG
@given(
    rows=st.builds(
        RecordRows,
        row_count=st.integers(0, 5),
        values=st.none() | INPUTS,
        keys=st.none() | INPUTS,
        headers=st.none() | HEADER_INPUTS,
    ),
    count=st.integers(1, 5),
    timestamps=st.none() | st.binary(max_size=40).map(lambda raw: raw[: len(raw) // 8 * 8]),
)
@example(
    rows=RecordRows(
        row_count=1,
        values=None,
        headers=HeaderInput(
            offsets=array("i", [0, 0]),
            names=BinaryInput(offsets=array("i"), values=b""),
            contents=BinaryInput(offsets=array("i"), values=b"", first=-1),
        ),
    ),
    count=1,
    timestamps=None,
)
def test_columns_that_contradict_themselves_are_refused_alike(rows: RecordRows, count: int, timestamps: Any) -> None:
    """Protects memory: buffers that do not match are read only within their sizes."""
    rows = RecordRows(
        row_count=rows.row_count, values=rows.values, keys=rows.keys, headers=rows.headers, timestamps_ms=timestamps
    )
    run = RowRun(rows, None, 0, count, 1000, 77)

    def write() -> Any:
        out = bytearray()
        return outcome(compiled_columns.append_rows, out, run), bytes(out)

    compiled, plain = both(write)
    assert compiled == plain


@needs_compiled
def test_arguments_of_any_kind_are_left_to_the_plain_form() -> None:
    """Protects the interpreter: an argument of a wrong type is never read as the right one."""
    assert COMPILED is not None
    batch = BatchRecords(bytes(payload_of([(0, 0, b"k", b"v", [])])), 1, 0, 0, 0, None, 0, 10)
    arrays = [bytearray(4) if place in (3, 6) else bytearray() for place in range(8)]
    assert COMPILED.append_records(batch, 0, tuple(arrays), 0, None) == (1, 0, 0, 0, 1, 0)
    for wrong in (None, 7, b"", "text", (), (1, 2, 3), bytearray(3), 2**70, -1):
        for place in range(8):
            fresh = [bytearray(4) if number in (3, 6) else bytearray() for number in range(8)]
            fresh[place] = wrong
            if place not in (4, 7) or not isinstance(wrong, bytearray):
                assert COMPILED.append_records(batch, 0, tuple(fresh), 0, None) is None
            changed = [*batch]
            changed[place] = wrong
            if not (isinstance(wrong, int) and place in (4, 5, 6, 7)) and not (wrong is None and place == 5):
                assert COMPILED.append_records(tuple(changed), 0, tuple(arrays), 0, None) is None
        assert COMPILED.append_records(wrong, 0, tuple(arrays), 0, None) is None
        assert COMPILED.walk_records(wrong, 1) is None
        assert COMPILED.append_rows(wrong, (), ()) is None
        assert COMPILED.append_rows(bytearray(), wrong, wrong) is None
        assert COMPILED.note_keys(wrong, bytes(16), b"", 0, 1, 0, 1, 0) is None
        assert COMPILED.retain(wrong, bytes(16), b"", 0, 1, 0, False, None) is None
    with pytest.raises(TypeError, match="3 arguments instead of 2"):
        COMPILED.walk_records(b"", 1, 2)  # type: ignore[call-arg]


@needs_compiled
def test_a_buffer_that_is_in_use_stays_as_it_is() -> None:
    """Protects an Arrow array over a buffer: the buffer cannot be moved while it is in use."""
    columns = RecordColumns()
    batch = BatchRecords(bytes(payload_of([(0, 0, b"k", b"v", [])])), 1, 0, 0, 0, None, 0, 10)
    assert compiled_columns.append_records(columns, batch) == 1
    held = memoryview(columns.values.values)
    with pytest.raises(BufferError):
        compiled_columns.append_records(columns, batch)
    assert held.tobytes() == b"v"


def test_the_slow_form_is_tested_too() -> None:
    """Protects the comparison: if both were the same function, it would prove nothing."""
    assert compiled_columns.append_records is not column_walk.append_records
