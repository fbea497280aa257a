"""Runs `lowtide` and `lowtide-delete-records` as a shell does, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

TIMEOUT_S = 120


def command(*words: object, tool: str = "lowtide.cli.main") -> list[str]:
    return [sys.executable, "-m", tool, *map(str, words)]


def environment(bootstrap: str | None) -> dict[str, str]:
    """Ours without what would reach another cluster, and with where this one is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOWTIDE_")}
    return kept if bootstrap is None else {**kept, "LOWTIDE_BOOTSTRAP_SERVER": bootstrap}


def run(*words: object, bootstrap: str | None = None, code: int = 0, tool: str = "lowtide.cli.main") -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal; its exit code has to be `code`."""
    ended = subprocess.run(
        command(*words, tool=tool),
        env=environment(bootstrap),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == code, f"{words}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    assert "Traceback" not in ended.stderr
    return ended


def answer(*words: object, bootstrap: str, code: int = 0) -> Any:
    """What a command says to programs."""
    return json.loads(run(*words, "--output", "json", bootstrap=bootstrap, code=code).stdout)


def sentence(*words: object, code: int, bootstrap: str | None = None, tool: str = "lowtide.cli.main") -> str:
    """What a command that refuses says: one sentence on standard error, and nothing on the other."""
    ended = run(*words, bootstrap=bootstrap, code=code, tool=tool)
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.strip()
