"""Lowtide: a Kafka-compatible broker in which deleting data is a first-class operation."""

from __future__ import annotations

from typing import Any

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
    """Imports a name on first use, so that a broker starts without its test helpers."""
    if name == "__version__":
        from lowtide.runtime.process import installed_version

        return installed_version()
    if name == "LowtideCluster":
        from lowtide.testing.cluster import LowtideCluster

        return LowtideCluster
    if name in __all__:
        from lowtide import admin

        return getattr(admin, name)
    raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
