"""What ends a workload: always a sentence, never a figure that nobody should believe."""

from __future__ import annotations


class BenchError(Exception):
    """The text is for the user."""
