"""Records of the ledger survive their bytes; damaged ones are refused, and unknown ones are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.protocol.erasure_ledger_records import (
    CleanKey,
    CleanReplica,
    LedgerEntry,
    NamedKey,
    NamedRecords,
    NamedRun,
    SelectorKind,
    decode_entry,
    encode_entry,
)
from lowtide.protocol.errors import ProtocolError

ids = st.binary(min_size=16, max_size=16)
int32s = st.integers(0, 2**31 - 1)
int64s = st.integers(-1, 2**63 - 1)
runs = st.builds(NamedRun, first_offset=int64s, leader_epoch=int32s, timestamps=st.lists(int64s, max_size=5))

named = st.builds(
    LedgerEntry,
    st.builds(
        NamedKey,
        erasure_id=ids,
        topic_id=ids,
        partition=int32s,
        leader_epoch=int32s,
        searched_to=int64s,
        part=st.integers(0, 9),
    ),
    st.none()
    | st.builds(
        NamedRecords,
        topic=st.text(max_size=20),
        kind=st.sampled_from(SelectorKind).map(int),
        commitment=st.sampled_from([b"", bytes(32)]),
        principal=st.text(max_size=20),
        leader_id=int32s,
        searched_from=int64s,
        log_start_offset=int64s,
        records=st.lists(runs, max_size=5),
        named_ms=int64s,
        committed_ms=int64s,
        erasures_end=int64s,
    ),
)
clean = st.builds(
    LedgerEntry,
    st.builds(CleanKey, erasure_id=ids, topic_id=ids, partition=int32s, broker_id=int32s),
    st.none()
    | st.builds(
        CleanReplica,
        topic=st.text(max_size=20),
        principal=st.text(max_size=20),
        offset=int64s,
        erasures_end=int64s,
        directory=st.text(max_size=20),
        directory_id=ids,
        broker_epoch=int64s,
        clean_ms=int64s,
    ),
)


@given(named | clean)
def test_an_entry_survives_its_bytes(entry: LedgerEntry) -> None:
    assert decode_entry(*encode_entry(entry)) == entry


@given(named | clean, st.data())
def test_a_cut_record_is_refused(entry: LedgerEntry, data: st.DataObject) -> None:
    key, value = encode_entry(entry)
    with pytest.raises(ProtocolError):
        decode_entry(key[: data.draw(st.integers(0, len(key) - 1))], value)
    if value:
        with pytest.raises(ProtocolError):
            decode_entry(key, value[: data.draw(st.integers(0, len(value) - 1))])


def test_an_unknown_type_is_left_out() -> None:
    assert decode_entry(b"\x00\x09abc", b"") is None


def test_an_unknown_version_is_refused() -> None:
    key, _ = encode_entry(
        LedgerEntry(CleanKey(erasure_id=bytes(16), topic_id=bytes(16), partition=0, broker_id=1), None)
    )
    with pytest.raises(ProtocolError, match="unknown version 7"):
        decode_entry(key, b"\x00\x07")
