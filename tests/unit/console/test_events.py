"""A stream takes at most its share of the event loop, however long its updates take."""

from __future__ import annotations

import pytest

from lowtide.console.events import INTERVAL_S, SHARE, pause_s


@pytest.mark.parametrize("took_ms", [0, 1, 30, 31, 65, 190, 1_000, 20_000])
def test_an_update_takes_at_most_its_share_of_the_time(took_ms: int):
    pause = pause_s(took_ms)
    assert pause >= INTERVAL_S
    assert took_ms / (took_ms + 1000 * pause) <= 1 / SHARE + 1e-9
