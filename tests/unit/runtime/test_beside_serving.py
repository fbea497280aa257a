"""Files that are read beside serving: bounded, and closed whatever becomes of the one who asked."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

from lowtide.runtime.beside_serving import read_file

LIMIT_S = 20


async def test_no_more_than_wanted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert [await read_file(str(path), wanted) for wanted in (2, 4)] == [b"ab", b"abc"]
    with pytest.raises(FileNotFoundError):
        await read_file(str(tmp_path / "missing"), 1)


async def test_a_cancelled_reader_leaves_no_file_open(tmp_path: Path) -> None:
    """It is cancelled while the file is opened, which here takes until a writer comes.

    An open file that is forgotten is a warning.
    """
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = asyncio.create_task(read_file(str(path), 10))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    with path.open("wb") as writer:
        writer.write(b"late")
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), LIMIT_S)
    gc.collect()
