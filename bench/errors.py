"""What ends a workload: always a sentence, never a wrong figure."""

from __future__ import annotations


class BenchError(Exception):
    """The text is for the user."""
