"""When a client tries again: growing back-off, addresses that failed or were silent, final error codes."""

from __future__ import annotations

import pytest

from lowtide.protocol.client.retries import SILENCE_MS, Backoff, Reachability, is_retriable, rest_after
from lowtide.protocol.errors import ErrorCode
from tests.each import each

BACKOFF = Backoff(50, 1000)


def test_back_off_doubles_up_to_the_largest():
    assert [BACKOFF.rest_ms(failures) for failures in range(1, 8)] == [50, 100, 200, 400, 800, 1000, 1000]
    assert BACKOFF.rest_ms(10**9) == 1000
    assert Backoff(100, 10).rest_ms(3) == 100
    assert Backoff(0, 1000).rest_ms(5) == 0


@pytest.mark.parametrize(("share", "rest_ms"), [(-1, 80), (0, 100), (1, 120)])
def test_back_off_differs_by_a_fifth_either_way(share: float, rest_ms: int):
    assert BACKOFF.rest_ms(2, share) == rest_ms


@each("code", [None, *ErrorCode, 9999, -7])
def test_a_code_decides_whether_another_attempt_follows(code: int | None):
    step = rest_after(code, failures=2, now_ms=1000, deadline_ms=5000, backoff=BACKOFF, share=0)
    again = code is None or is_retriable(code)
    assert step == (100 if again else None)
    assert again == (code is None or (code in set(ErrorCode) and ErrorCode(code).retriable))


@pytest.mark.parametrize(("now_ms", "step"), [(4899, 100), (4900, None), (9000, None)])
def test_no_attempt_begins_at_the_deadline_or_after_it(now_ms: int, step: int | None):
    assert rest_after(None, failures=2, now_ms=now_ms, deadline_ms=5000, backoff=BACKOFF, share=0) == step


def test_a_back_off_is_at_least_a_millisecond():
    assert rest_after(None, failures=1, now_ms=0, deadline_ms=10, backoff=Backoff(0, 0), share=0) == 1


def test_an_address_that_failed_backs_off_longer_each_time_until_it_is_reached():
    address = Reachability(BACKOFF)
    assert address.wait_ms(0) == 0
    address.on_failure(0)
    address.on_failure(1000)
    assert [address.wait_ms(now_ms) for now_ms in (1000, 1040, 1100, 2000)] == [100, 60, 0, 0]
    address.on_success()
    assert address.wait_ms(1000) == 0
    address.on_failure(5000)
    assert address.wait_ms(5000) == 50


def test_an_address_was_silent_for_a_while_or_until_it_answers():
    address = Reachability(BACKOFF)
    assert not address.was_silent(0)
    address.on_silence(1000)
    assert address.was_silent(1000 + SILENCE_MS - 1)
    assert not address.was_silent(1000 + SILENCE_MS)
    address.on_answer()
    assert not address.was_silent(1000)
