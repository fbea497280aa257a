"""The static files, which are read once at the start. Only names in the table are served."""

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
"""The served files; others in the folder are not served."""


class StaticFile(NamedTuple):
    """A file with its headers."""

    content: bytes
    kind: str
    tag: str
    """Its ETag, a hash of the content."""


def read_files(files: FileSystem, folder: str = FOLDER) -> dict[str, StaticFile]:
    """Reads all files by name. Errors: OSError."""
    found = {}
    for name in NAMES:
        content = files.read_bytes(f"{folder}/{name}")
        tag = hashlib.sha256(content).hexdigest()[:32]
        found[name] = StaticFile(content, KINDS[PurePath(name).suffix], f'"{tag}"')
    return found
