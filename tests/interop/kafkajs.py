"""kafkajs as a program (`node/`): its package is fetched once into the cache, by npm as it is configured."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from pathlib import Path

from .kafka import CACHE

SOURCE = Path(__file__).parent / "node"
FETCH_TIMEOUT_S = 300


def fetch() -> Path:
    """Returns the folder with the program and its packages. Errors: CalledProcessError with npm's output."""
    files = {path.name: path.read_bytes() for path in sorted(SOURCE.iterdir()) if path.is_file()}
    folder = CACHE / f"kafkajs-{zlib.crc32(b''.join(files.values())):08x}"
    if not (folder / "node_modules").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=FETCH_TIMEOUT_S)
    return folder
