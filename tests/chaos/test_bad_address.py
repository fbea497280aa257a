"""A broker that cannot listen at its address: the message has the key, and the logs are cleanly stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .serving import ServeProcess, run_to_end, serve_command


@pytest.mark.slow
def test_an_address_in_use_is_refused_by_its_key_and_costs_no_recovery(tmp_path: Path) -> None:
    directory = tmp_path / "second"

    async def serve() -> None:
        async with ServeProcess(directory) as second:
            assert await second.terminate() == 0
        async with ServeProcess(tmp_path / "first") as first:
            address = f"listeners=PLAINTEXT://127.0.0.1:{first.port}"
            ended = await asyncio.to_thread(run_to_end, serve_command(directory, address))
            assert ended.returncode == 2
            assert ended.stderr.splitlines() == [f"lowtide serve: {address} is not possible: address already in use."]
            assert (directory / ".kafka_cleanshutdown").exists()

    asyncio.run(serve())
