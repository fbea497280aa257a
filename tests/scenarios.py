"""Tests that are coroutines, run by a function that prepares their world."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

Scenario: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


def played_by(runner: Callable[..., object], *arguments: Any) -> Callable[[Scenario], Callable[..., None]]:
    """Turns a scenario into a test that calls `runner(scenario, *arguments)`.

    The runner passes the scenario's positional-only parameters, pytest the others.
    """

    def decorate(scenario: Scenario) -> Callable[..., None]:
        @functools.wraps(scenario)
        def test(**given: Any) -> None:
            runner(lambda *worlds: scenario(*worlds, **given), *arguments)

        return test

    return decorate


def run_async(scenario: Scenario) -> None:
    """Runs a scenario in an event loop of its own."""
    asyncio.run(scenario())
