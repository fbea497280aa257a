"""Lowtide: a Kafka-compatible broker in which deleting data is a first-class operation."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"
__all__ = [
    "AdminClient",
    "BlockingAdminClient",
    "Committed",
    "DeletedRecords",
    "LowtideCluster",
    "Timestamp",
    "TopicPartition",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import what a user asks for when it is asked for: the broker itself starts without its test helpers."""
    if name == "LowtideCluster":
        from lowtide.testing.cluster import LowtideCluster

        return LowtideCluster
    if name in __all__:
        from lowtide import admin

        return getattr(admin, name)
    message = f"module 'lowtide' has no attribute {name!r}"
    raise AttributeError(message)
