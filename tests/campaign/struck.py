"""Counts injected faults by kind and writes them to the file in `TEST_FAULTS`, for the campaign's ledger."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

VARIABLE = "TEST_FAULTS"

_counts = Counter[str]()


def strike(kind: str, count: int = 1) -> None:
    """Counts a fault that took effect."""
    _counts[kind] += count


def write() -> None:
    """Writes the counts at the end of a session. Does nothing without the variable."""
    if VARIABLE in os.environ:
        Path(os.environ[VARIABLE]).write_text(json.dumps(dict(_counts)), encoding="utf-8")
