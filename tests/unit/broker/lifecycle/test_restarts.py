"""When a process that ended is started again."""

from __future__ import annotations

from lowtide.broker.lifecycle.supervisor.member import LAST_DELAY_MS, STEADY_MS, Restarts


def test_each_time_later_up_to_a_limit() -> None:
    restarts = Restarts()
    assert [restarts.on_ended(0) for _ in range(5)] == [100, 200, 400, 800, 1600]
    for _ in range(100):
        delay = restarts.on_ended(0)
    assert delay == LAST_DELAY_MS


def test_a_steady_life_begins_the_count_again() -> None:
    restarts = Restarts()
    restarts.on_ended(0)
    restarts.on_ready(0)
    assert restarts.on_ended(STEADY_MS - 1) == 200, "it served, but not for long"
    restarts.on_ready(10)
    assert restarts.on_ended(STEADY_MS + 10) == 100
    assert restarts.in_a_row == 1
    assert restarts.on_ended(10 * STEADY_MS) == 200, "it did not serve since"
