"""The error that ends a workload, so that no wrong figure is printed."""

from __future__ import annotations


class BenchError(Exception):
    """The text is for the user."""
