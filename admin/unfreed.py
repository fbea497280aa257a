"""What deleted bytes wait for that take room still, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WAITS: Final[Mapping[str, str]] = {
    "round": "freed within a second",
    "reader": "an answer is being sent from the file",
    "batch": "they share a batch with records that are kept",
    "file-system": "the file system makes no holes in files",
    "compacted": "the log is, or was, compacted",
    "switched-off": "lowtide.log.free.deleted is false",
}


def waits_for(reason: str) -> str:
    """One of them; as it is where another version has others."""
    return WAITS.get(reason, reason)
