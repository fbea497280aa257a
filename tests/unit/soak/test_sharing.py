"""What members of a share group got: offsets in any order, some twice, and one that never comes."""

from __future__ import annotations

import pytest

from tests.soak import sharing
from tests.soak.sharing import Delivered


def test_records_may_come_in_any_order_and_again():
    delivered = Delivered()
    assert delivered.add(100, 104) == 5
    assert delivered.next == 105
    assert delivered.add(110, 112) == 3
    assert delivered.next == 105
    assert delivered.add(103, 109) == 5
    assert delivered.next == 113
    assert delivered.add(90, 112) == 0
    delivered.check(0)


def test_a_record_that_is_missing_for_long_is_named(monkeypatch: pytest.MonkeyPatch):
    delivered = Delivered()
    delivered.add(0, 4)
    delivered.add(6, 7)
    delivered.check(1)
    monkeypatch.setattr(sharing, "MISSING_LIMIT_S", 0.0)
    with pytest.raises(AssertionError, match=r"queued-1: offset 5 was not delivered .* 2 after it were"):
        delivered.check(1)
    delivered.add(5, 5)
    assert delivered.next == 8
