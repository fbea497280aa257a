"""A soak that is to end early."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.soak.__main__ import Soak, options_of


def test_a_soak_that_is_to_end_waits_for_nothing_more(tmp_path: Path) -> None:
    """Ctrl-C and SIGTERM do this; what was started is stopped as at its end."""

    async def main() -> list[bool]:
        cluster: Any = None
        run = Soak(cluster, tmp_path, options_of(["--minutes", "60"]))
        assert await run.pause(0)
        waiting = asyncio.gather(*(run.pause(3600) for _ in range(3)))
        await asyncio.sleep(0)
        run.end()
        return [*await waiting, await run.pause(3600)]

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [False] * 4
