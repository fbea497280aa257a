"""`python -m bench`: every workload runs, with a broker that it starts and with one given by address, and leaves
nothing behind.

Amounts are tiny, so the figures have no meaning; the tests check that they exist, and that no record is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
STARTED_ONLY = {"start", "kill", "tls", "logins", "trim"}
WORKLOADS = {
    *("start", "batches", "single", "closed", "fetches", "metadata", "versions", "kcat", "tls", "logins", "delete"),
    *("deletemany", "purge", "trim", "rebalance", "commits", "transactions", "connections", "partitions", "kill"),
}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_one_tiny_round_of_everything(lowtide: SimpleNamespace, tmp_path: Path):
    if shutil.which("kcat") is None and not os.environ.get("CI"):
        pytest.skip("kcat is not installed")
    scratch, out = tmp_path / "scratch", tmp_path / "out.json"
    scratch.mkdir()
    given = f"given={lowtide.bootstrap}:{os.getpid()}"
    ended = run("--tiny", "-r", "1", "--warm", "0", "--target", given, "--scratch", str(scratch), "--json", str(out))
    assert ended.returncode == 0, ended.stderr
    document = json.loads(out.read_text())
    assert document["faults"] == []
    found = {(entry["workload"], entry["target"]): entry["figures"] for entry in document["rounds"]}
    assert set(found) == {(name, "lowtide") for name in WORKLOADS} | {
        (name, "given") for name in WORKLOADS - STARTED_ONLY
    }
    assert found["kill", "lowtide"]["records lost"] == 0
    assert document["floor"]["single 1 KiB, requests/s"] > 0
    assert document["floor"]["batches of 16 KiB received, checked and written, CPU us a request"] > 0
    if Path("/proc/self/stat").exists():
        unknown = [
            (place, name) for place, figures in found.items() for name, value in figures.items() if value is None
        ]
        assert unknown == []
        assert found["single", "lowtide"]["broker CPU us a request"] > 0
        assert found["start", "lowtide"]["resident idle, MB"] > 1
    assert "## Summary" in ended.stdout
    assert list(scratch.iterdir()) == []


def test_a_bench_that_is_ended_ends_its_broker(tmp_path: Path):
    """SIGTERM in the middle of a round: no process and no directory remains."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [sys.executable, "-m", "bench", "-w", "batches", "-r", "1000", "--scratch", str(scratch)]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("batches: lowtide, round 1"):
                break
        running.terminate()
        running.stderr.read()
        assert running.wait(LIMIT_S) == 1
    assert list(scratch.iterdir()) == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(scratch).encode() in content_of(path)]


def content_of(path: Path) -> bytes:
    """Returns the contents of a file that may be removed already."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
