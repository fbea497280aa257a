"""Other versions of Python on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def _output(*command: str) -> str:
    """Returns the output of a command, or nothing if it cannot be run or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def installed(version: str) -> str | None:
    """Returns a Python of this version (`3.12`) from the PATH or pyenv. An unselected pyenv shim fails."""
    root = _output("pyenv", "root")
    of_pyenv = sorted(Path(root, "versions").glob(f"{version}.*/bin/python")) if root else []
    for program in (f"python{version}", sys.executable, *map(str, of_pyenv)):
        if _output(program, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return program
    return None
