"""Unknown key ids: each is a reason to fetch the key set once a minute, and few are remembered."""

from __future__ import annotations

from lowtide.broker.security.unknown_keys import ID_CHARACTERS_MAX, IDS_MAX, REMEMBERED_MS, UnknownKeys


def test_an_id_is_a_reason_once_in_a_minute() -> None:
    unknown = UnknownKeys()
    assert unknown.is_reason("a", 0)
    assert not unknown.is_reason("a", REMEMBERED_MS - 1)
    assert unknown.is_reason("b", REMEMBERED_MS - 1)
    assert unknown.is_reason("a", REMEMBERED_MS)


def test_an_id_that_was_found_is_a_reason_again() -> None:
    unknown = UnknownKeys()
    unknown.is_reason("a", 0)
    unknown.forget({"a", "z"})
    assert unknown.is_reason("a", 1)


def test_few_short_ids_are_remembered() -> None:
    unknown = UnknownKeys()
    assert not unknown.is_reason("a" * (ID_CHARACTERS_MAX + 1), 0)
    assert unknown.is_reason("a" * ID_CHARACTERS_MAX, 0)
    assert all(unknown.is_reason(str(number), 0) for number in range(IDS_MAX + 1))
    assert len(unknown._until_ms) == IDS_MAX
    assert unknown.is_reason("0", 0)
    assert not unknown.is_reason(str(IDS_MAX), 0)
