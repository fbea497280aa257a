"""Sends the answers of several connections together, at the end of one pass of the event loop.

A write to a socket wakes a client that sleeps. On another core that takes an interrupt, several microseconds of the
broker's time. If one pass answers many clients at its end, most of them are woken while others still run, and their
next requests arrive together, so the next pass finds more of them.

Waiting costs an answer the rest of the pass. So it waits only if another connection was answered less than `NEAR_NS`
ago, for at most about `HELD_NS`, and none waits for `REST_NS` after a pass that answered a single connection. A client
that is alone is answered at once.

Guards: answers leave a connection in their order, because whatever sends one of them sends all that are ready. They
hold no view of received bytes (`connection`): other connections receive into the same buffer meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.network.connection.answers import Answers
from lowtide.broker.network.routing.request_times import RequestClock

NEAR_NS: Final = 100_000
"""If another connection was answered within this time, more may follow in the same pass."""

HELD_NS: Final = 250_000
"""After this time all waiting answers are sent before the next request is executed."""

REST_NS: Final = 2_000_000
"""How long no answer waits after a pass that answered a single connection."""


class PassAnswers:
    """The answers of a broker's connections that wait for the end of a pass."""

    def __init__(self, clock: RequestClock) -> None:
        self.last: Answers | None = None
        """Those of the connection that was answered last. They don't wait: it may be alone."""
        self._clock = clock
        self._last_ns = -NEAR_NS
        self._first_ns = self._rest_until_ns = 0
        self._waiting: list[Answers] = []

    def take(self, answers: Answers) -> None:
        """Sends the answers of a connection that is not the last one, now or at the end of this pass."""
        now_ns = self._clock.moment_ns
        is_near = now_ns - self._last_ns < NEAR_NS
        self.last, self._last_ns = answers, now_ns
        if not is_near or now_ns < self._rest_until_ns:
            answers.flush()
            return
        if not self._waiting:
            self._first_ns = now_ns
            asyncio.get_running_loop().call_soon(self._end_pass)
        self._waiting.append(answers)
        if now_ns - self._first_ns >= HELD_NS:
            self._send()

    def _end_pass(self) -> None:
        if len(self._waiting) == 1:
            self._rest_until_ns = self._first_ns + REST_NS
        self._send()

    def _send(self) -> None:
        """Sends all waiting answers. A connection that can't send is closed, and affects no other one."""
        waiting, self._waiting = self._waiting, []
        for answers in waiting:
            try:
                answers.flush()
            except Exception as error:  # noqa: BLE001  the others must send theirs
                if answers.outgoing is not None:
                    answers.outgoing.give_up("its answers could not be sent")
                context = {"message": f"{answers!r} could not be sent", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
