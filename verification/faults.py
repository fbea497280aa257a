"""Runs the user's command, which makes faults: it kills brokers, for example, and starts them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from lowtide.runtime.child_process import start_child

ROUND_VARIABLE: Final = "VERIFY_DELETES_ROUND"
"""The environment variable that has the number of the round; the command's last argument has it too."""


class FaultResult(NamedTuple):
    """How a run of the command ended. `exit_code` is None if it was killed or could not be started."""

    exit_code: int | None
    error: str = ""


class FaultCommand:
    """A command with its arguments, which may take so many seconds."""

    def __init__(self, words: Sequence[str], timeout_s: float) -> None:
        self._words = words
        self._timeout_s = timeout_s

    async def run(self, number: int) -> FaultResult:
        """Runs the command. Its output goes to standard error. Processes that it has started continue."""
        try:
            child = await start_child(
                [*self._words, str(number)], [], {ROUND_VARIABLE: str(number)}, output_is_errors=True
            )
        except OSError as error:
            return FaultResult(None, f"it could not be started: {error.strerror or error}")
        try:
            async with asyncio.timeout(self._timeout_s):
                return FaultResult(await child.wait())
        except TimeoutError:
            return FaultResult(None, f"it was killed after {self._timeout_s:g} s")
        finally:
            child.kill()
            await child.wait()
