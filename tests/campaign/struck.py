"""Faults that struck in this process of tests, by kind; written where `TEST_FAULTS` says, for the campaign's ledger."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

VARIABLE = "TEST_FAULTS"

_counts = Counter[str]()


def strike(kind: str, count: int = 1) -> None:
    """A fault has reached what it was meant for."""
    _counts[kind] += count


def write() -> None:
    """At the end of a session. Does nothing without the variable."""
    if VARIABLE in os.environ:
        Path(os.environ[VARIABLE]).write_text(json.dumps(dict(_counts)), encoding="utf-8")
