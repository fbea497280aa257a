"""The copy of the metadata in a log directory: its state after a crash, and what it proves about a store."""

from __future__ import annotations

import pytest

from lowtide.metadata import keys
from lowtide.metadata.metadata_copy import (
    Change,
    CopyError,
    MetadataCopy,
    change_of,
    contradiction,
    decode_copy,
    encode_change,
    encode_copy,
    rows_of,
)
from lowtide.metadata.store import Batch, KeyEvent, KeyValue

PREFIX = b"/lowtide/"
ROWS = [(b"topics/t%d" % number, b'{"n":%d}' % number, number + 1, number + 1) for number in range(250)]
LATER = [Change(251, ((b"topics/t0", b"\xff\x00", 1, 251),)), Change(252, (), (b"topics/t1",)), Change(253)]


def file_of(copy: MetadataCopy) -> bytes:
    return b"".join(encode_copy(copy))


def known() -> MetadataCopy:
    return MetadataCopy(ROWS, 250, history_id="h", cluster_id="c")


def test_a_copy_is_read_back_with_what_was_appended() -> None:
    content = file_of(known()) + b"".join(map(encode_change, LATER))
    found, expected = decode_copy(content), known()
    for change in LATER:
        expected.apply(change)
    assert (found.rows, found.revision, found.history_id, found.cluster_id) == (expected.rows, 253, "h", "c")


def test_a_truncated_copy_is_of_one_revision_or_is_none() -> None:
    beginning = file_of(known())
    content = beginning + b"".join(map(encode_change, LATER))
    states = {250: known()}
    for change in LATER:
        state = MetadataCopy(states[change.revision - 1].rows.values(), change.revision)
        state.apply(change)
        states[change.revision] = state
    for end in range(len(content)):
        if end < len(beginning) - 1:
            with pytest.raises(CopyError):
                decode_copy(content[:end])
        else:
            found = decode_copy(content[:end])
            assert found.rows == states[found.revision].rows


@pytest.mark.parametrize("content", [b"", b"\n", b"00000000 {}\n", b"garbage"])
def test_an_invalid_copy_is_refused(content: bytes) -> None:
    with pytest.raises(CopyError):
        decode_copy(content)


def test_a_copy_of_a_newer_format_is_refused_by_name() -> None:
    from lowtide.protocol.crc32c import crc32c

    line = b'{"format":9,"history_id":"","cluster_id":"","revision":1,"keys":0}'
    with pytest.raises(CopyError, match="format 9"):
        decode_copy(b"%08x %s\n" % (crc32c(line), line))


def test_live_registrations_are_not_in_a_copy() -> None:
    pairs = [KeyValue(PREFIX + b"brokers/1", b"x", 5, 5, 77), KeyValue(PREFIX + b"topics/t", b"y", 3, 4)]
    assert rows_of(pairs, PREFIX) == [(b"topics/t", b"y", 3, 4)]
    events = (KeyEvent(PREFIX + b"controller", b"x", 6, 6, 77), KeyEvent(PREFIX + b"topics/t", None, 0, 6))
    assert change_of(Batch(6, events), PREFIX) == Change(6, (), (b"topics/t",))


def test_a_later_state_of_the_store_contradicts_nothing() -> None:
    copy = known()
    rows = dict(copy.rows)
    assert contradiction(copy, rows, 250) is None
    del rows[b"topics/t7"]
    rows[b"topics/t8"] = (b"topics/t8", b"new", 9, 300)
    rows[b"topics/new"] = (b"topics/new", b"new", 301, 301)
    assert contradiction(copy, rows, 301) is None


def test_an_earlier_state_is_proved_at_any_later_revision() -> None:
    """A key has an older value than in the copy, or a key is there that the copy has as deleted."""
    copy = known()
    copy.apply(LATER[0])
    copy.apply(LATER[1])
    before = {row[0]: row for row in ROWS}
    reason = contradiction(copy, before, 250)
    assert reason is not None
    assert "revision 250, and was at 252" in reason
    pushed = before | {b"topics/new": (b"topics/new", b"", 400, 400)}
    reason = contradiction(copy, pushed, 400)
    assert reason is not None
    assert "topics/t0 is of revision 1, and was of revision 251" in reason
    pushed[b"topics/t0"] = (b"topics/t0", b"", 1, 401)
    reason = contradiction(copy, pushed, 401)
    assert reason is not None
    assert "topics/t1 is of revision 2, and did not exist" in reason
    del pushed[b"topics/t1"]
    assert contradiction(copy, pushed, 402) is None, "no trace is left: this looks like a later state"


def test_a_missing_key_that_is_never_deleted_proves_it_too() -> None:
    row = (keys.registration(1), b"{}", 3, 3)
    copy = MetadataCopy([row], 3)
    reason = contradiction(copy, {}, 9)
    assert reason is not None
    assert "registrations/1 is missing" in reason


def test_a_topic_that_is_missing_without_a_tombstone_proves_it_unless_a_tombstone_was_swept() -> None:
    topic_id = b"T" * 16
    copy = MetadataCopy([(keys.topic_id(topic_id), b"t", 3, 3)], 3)
    reason = contradiction(copy, {}, 9)
    assert reason is not None
    assert "nothing says that the topic was deleted" in reason
    deleted = (keys.deleted_topic(topic_id), b"t", 8, 8)
    assert contradiction(copy, {deleted[0]: deleted}, 9) is None
    many = {
        key: (key, b"", 8, 8)
        for key in (keys.deleted_topic(b"%016d" % number) for number in range(keys.TOMBSTONES_MAX))
    }
    assert contradiction(copy, many, 9) is None
    copy.apply(Change(4, (deleted,)))
    assert contradiction(copy, {}, 9) is not None, "a tombstone lasts"
