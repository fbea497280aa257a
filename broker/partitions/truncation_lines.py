"""Logs truncations by followers: the first ones one by one, and the number of the others.

A broker that returns after a failover may truncate ten thousand logs in one second.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

TOLD_ONE_BY_ONE: Final = 20
"""Lines in a period. At its end the number of the others is logged."""

PERIOD_MS: Final = 1_000


class TruncationLines:
    """The lines of one broker. Used from the event loop only."""

    __slots__ = ("_left_out", "_log", "_lossy_left_out", "_told")

    def __init__(self, log: Any) -> None:
        self._log = log
        self._told = self._left_out = self._lossy_left_out = 0

    def tell(self, event: str, *, is_lossy: bool = False, **values: object) -> None:
        """Logs that a log is truncated or reset, as a warning if committed records are lost (`is_lossy`)."""
        if not self._told:
            asyncio.get_running_loop().call_later(PERIOD_MS / 1000, self._end_period)
        if self._told < TOLD_ONE_BY_ONE:
            self._told += 1
            (self._log.warning if is_lossy else self._log.info)(event, **values)
        else:
            self._left_out += 1
            self._lossy_left_out += is_lossy

    def _end_period(self) -> None:
        left_out, lossy = self._left_out, self._lossy_left_out
        self._told = self._left_out = self._lossy_left_out = 0
        if left_out:
            tell = self._log.warning if lossy else self._log.info
            tell("more logs are truncated, or start over", logs=left_out, below_their_high_watermark=lossy)
