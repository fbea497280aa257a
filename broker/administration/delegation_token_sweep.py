"""Removes expired delegation tokens, on the controller, some time after their expiry."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.config.key import number
from lowtide.broker.context import BrokerContext
from lowtide.metadata.changes import ChangePlan
from lowtide.replication.delegation_token_changes import plan_sweep_of_tokens
from lowtide.replication.refusal import Refusal

TIMEOUT_S: Final = 30


class _Decided(msgspec.Struct, frozen=True):
    plan: ChangePlan


class TokenSweep:
    """Looks for expired tokens every `delegation.token.expiry.check.interval.ms`."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._interval_ms = number(broker.config.values["delegation.token.expiry.check.interval.ms"])
        self._next_ms = broker.clock.monotonic_ms() + self._interval_ms
        self._runs = False

    def on_tick(self) -> None:
        """Starts a sweep if it is due and this broker is the controller."""
        now_ms, metadata = self._broker.clock.monotonic_ms(), self._broker.metadata
        if now_ms < self._next_ms or self._runs:
            return
        self._next_ms = now_ms + self._interval_ms
        if metadata.image.controller_id == metadata.broker_id and not self._decide().plan.is_empty:
            self._runs = True
            self._broker.tasks.spawn(self._sweep(), name="token sweep")

    async def _sweep(self) -> None:
        try:
            while True:
                deadline = asyncio.get_running_loop().time() + TIMEOUT_S
                outcome = await decide_and_commit(self._broker.metadata, self._decide, deadline)
                if isinstance(outcome, Refusal) or outcome.plan.is_empty:
                    return
                self._broker.log.info("delegation tokens have expired", count=len(outcome.plan.steps[0].operations))
        finally:
            self._runs = False

    def _decide(self) -> _Decided:
        return _Decided(plan_sweep_of_tokens(self._broker.metadata.image, self._broker.clock.wall_ms()))
