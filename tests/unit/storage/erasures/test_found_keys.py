"""The keys of records that were found: each record has its own, and a selector has room for all of them."""

from __future__ import annotations

import pytest

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
from lowtide.storage.erasures import found_keys
from lowtide.storage.erasures.found_keys import NO_PRODUCER, FoundKeys


def add_batch(keys: FoundKeys, offsets: list[int], *, is_transactional: bool) -> None:
    rows = [(1, key, b"value", ()) for key in (b"a", None, b"b", b"", b"a")]
    batch = build_batch(rows, base_offset=40, producer_id=9, is_transactional=is_transactional)
    keys.add_batch(read_batch_header(batch), batch[RECORD_BATCH_OVERHEAD:], offsets)


def test_each_record_has_its_key_and_its_transactions_producer() -> None:
    """Protects other keys, of which all older versions would be erased; and what a transaction has aborted."""
    found = FoundKeys()
    add_batch(found, [40, 41, 43, 44], is_transactional=True)
    add_batch(found, [42, 44], is_transactional=False)
    expected = [(b"a", 9), (None, 9), (b"", 9), (b"a", 9), (b"b", NO_PRODUCER), (b"a", NO_PRODUCER)]
    assert list(found.each()) == expected
    assert found.keys == [b"a", None, b"", b"b"]
    again = FoundKeys(found.keys, found.numbers, found.producer_ids)
    again.add(b"b", 7)
    again.add(b"c", 7)
    assert list(again.each()) == [*expected, (b"b", 7), (b"c", 7)]
    assert again.keys == [b"a", None, b"", b"b", b"c"]


@pytest.mark.parametrize(
    ("keys", "are_too_many"),
    [
        ([b"a", b"b", b"c"], False),
        ([b"a", b"b", b"c", None], False),
        ([b"a", b"b", b"c", b"d"], True),
        ([b"a", b"b", b"c", b"d", None], True),
        ([b"a", b"b", b"a", b"b"], False),
        ([b"12345", b"67890", None], False),
        ([b"12345", b"678901"], True),
        ([b"12345678", b"12345678", b""], False),
    ],
)
def test_there_are_as_many_keys_as_a_selector_may_have(
    keys: list[bytes | None], are_too_many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record without a key takes no room."""
    monkeypatch.setattr(found_keys, "KEYS_MAX", 3)
    monkeypatch.setattr(found_keys, "KEY_BYTES_MAX", 10)
    added, different = FoundKeys(), list(dict.fromkeys(keys))
    for key in keys:
        added.add(key, NO_PRODUCER)
    assert added.are_too_many == are_too_many
    assert FoundKeys(different).are_too_many == are_too_many
    assert b"123" not in repr(added).encode()
