"""A process that a test suspends has stopped when the call returns, all of its threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.freezing import freeze, thaw

COUNTING = """
import mmap, sys, threading

def count(place):
    while True:
        memory[place] = (memory[place] + 1) % 256

with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 2)
threads = [threading.Thread(target=count, args=(place,)) for place in range(2)]
for thread in threads:
    thread.start()
print("counts", flush=True)
for thread in threads:
    thread.join()
"""
LOOKS = 10_000


def test_nothing_runs_after_it_returns(tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(2))
    with subprocess.Popen([sys.executable, "-c", COUNTING, str(counts)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"counts\n"
            for _ in range(3):
                freeze(process.pid)
                before = counts.read_bytes()
                assert {counts.read_bytes() for _ in range(LOOKS)} == {before}
                thaw(process.pid)
                while counts.read_bytes() == before:
                    pass
        finally:
            process.kill()
