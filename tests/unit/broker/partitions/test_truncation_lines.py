"""A failover of very many partitions does not write a log line for each."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from lowtide.broker.partitions.truncation_lines import PERIOD_MS, TOLD_ONE_BY_ONE, TruncationLines
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation

Line = tuple[str, str, dict[str, Any]]


def lines_of(bursts: list[list[bool]]) -> list[list[Line]]:
    """Returns the lines of each burst, two periods apart. Each entry says whether a truncation is lossy."""
    told: list[Line] = []

    def keep(level: str) -> Any:
        return lambda event, **values: told.append((level, event, values))

    async def main(_loop: SimulatedLoop) -> list[list[Line]]:
        lines = TruncationLines(SimpleNamespace(info=keep("info"), warning=keep("warning")))
        found = []
        for burst in bursts:
            for is_lossy in burst:
                lines.tell("log is cut", is_lossy=is_lossy, partition="t-0")
            await asyncio.sleep(2 * PERIOD_MS / 1000)
            found.append(told.copy())
            told.clear()
        return found

    return run_simulation(main, 1)


def test_a_few_are_logged_one_by_one_and_lossy_ones_as_warnings() -> None:
    values = {"partition": "t-0"}
    assert lines_of([[False, True]]) == [[("info", "log is cut", values), ("warning", "log is cut", values)]]


def test_of_many_the_rest_is_counted_and_the_next_burst_is_logged_again() -> None:
    many, few = lines_of([[False] * (TOLD_ONE_BY_ONE + 5_000) + [True] * 3, [False]])
    assert len(many) == TOLD_ONE_BY_ONE + 1
    assert many[-1] == (
        "warning",
        "more logs are truncated, or start over",
        {"logs": 5_003, "below_their_high_watermark": 3},
    )
    assert [level for level, _, _ in few] == ["info"]
