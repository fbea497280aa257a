"""axe-core, which checks the accessibility of pages: npm fetches it once into the cache."""

from __future__ import annotations

import subprocess

from .kafka import CACHE

VERSION = "4.14.1"
FETCH_TIMEOUT_S = 300


def axe_script() -> str:
    """Returns the text of its script. Errors: CalledProcessError with npm's output."""
    folder = CACHE / f"axe-core-{VERSION}"
    script = folder / "node_modules/axe-core/axe.min.js"
    if not script.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--prefix",
            ".",
            f"axe-core@{VERSION}",
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)
    return script.read_text(encoding="utf-8")
