"""The files that a browser loads: read once, when the site is made, and served by their names alone.

There is no path to escape from: a name that isn't in the table isn't there.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePath
from typing import Final, NamedTuple

from lowtide.runtime.filesystem import FileSystem

FOLDER: Final = str(PurePath(__file__).parent / "static")

KINDS: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

NAMES: Final = (
    "index.html",
    "css/base.css",
    "css/parts.css",
    "css/tide.svg",
    "js/app.js",
    "js/api.js",
    "js/cluster.js",
    "js/deletes.js",
    "js/dialog.js",
    "js/dom.js",
    "js/groups.js",
    "js/login.js",
    "js/purge.js",
    "js/records.js",
    "js/segments.js",
    "js/history.js",
    "js/table.js",
    "js/theme.js",
    "js/topic.js",
    "js/topics.js",
    "js/units.js",
    "vendor/uplot.js",
    "vendor/uplot.css",
)
"""What is served; all else in the folder isn't."""


class File(NamedTuple):
    """A file as it is sent."""

    content: bytes
    kind: str
    tag: str
    """Changes with the content."""


def read_files(files: FileSystem, folder: str = FOLDER) -> dict[str, File]:
    """Each file by its name. Errors: OSError."""
    found = {}
    for name in NAMES:
        content = files.read_bytes(f"{folder}/{name}")
        tag = hashlib.sha256(content).hexdigest()[:32]
        found[name] = File(content, KINDS[PurePath(name).suffix], f'"{tag}"')
    return found
