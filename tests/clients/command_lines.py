"""Runs `lowtide`, mostly in this process: a process for each call would take longer than all the commands."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

from lowtide.cli.main import main

TIMEOUT_S = 120


class Ran(NamedTuple):
    """The output and exit code of a command."""

    code: int
    stdout: str
    stderr: str


def command(*words: object, tool: str = "lowtide.cli.main") -> list[str]:
    return [sys.executable, "-m", tool, *map(str, words)]


def environment(bootstrap: str | None) -> dict[str, str]:
    """Our environment without settings of another cluster, and with the address of this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOWTIDE_")}
    return kept if bootstrap is None else {**kept, "LOWTIDE_BOOTSTRAP_SERVER": bootstrap}


def run(*words: object, bootstrap: str | None = None, code: int | None = 0) -> Ran:
    """Runs a command to its end, without a terminal; its exit code must be `code`, if one is given."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, environment(bootstrap), clear=True):
        ended = main([str(word) for word in words])
    assert code in (ended, None), f"{words}: exit code {ended}\n{out.getvalue()}\n{err.getvalue()}"
    return Ran(ended, out.getvalue(), err.getvalue())


def run_process(*words: object, bootstrap: str | None = None, code: int = 0, tool: str = "lowtide.cli.main") -> Ran:
    """Returns the same in a separate process, as from a shell."""
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
    return Ran(ended.returncode, ended.stdout, ended.stderr)


def answer(*words: object, bootstrap: str, code: int = 0) -> Any:
    """Returns the JSON output of a command."""
    return json.loads(run(*words, "--output", "json", bootstrap=bootstrap, code=code).stdout)


def sentence(*words: object, code: int, bootstrap: str | None = None) -> str:
    """Returns the message of a command that refuses: on standard error alone, or the same as JSON."""
    ran = run(*words, bootstrap=bootstrap, code=code)
    assert ran.stdout == "" or set(json.loads(ran.stdout)) == {"error"}
    assert ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr.strip()
