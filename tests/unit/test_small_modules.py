"""Class names are unique in the tree, and a small module with one importer belongs into that importer.

The lists have what isn't so yet. They only shrink.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "admin",
    "broker",
    "cli",
    "console",
    "metadata",
    "pipeline",
    "protocol",
    "replication",
    "runtime",
    "simulation",
    "storage",
    "testing",
    "verification",
)
LINES_MAX = 60

FOUND_BY_NAME = ("broker/handlers/", "protocol/messages/")
"""A module for each API, which is found by its name."""

REPEATED: dict[str, int] = {
    "AlterConfigsResource": 2,
    "AlterConfigsResourceResponse": 2,
    "AlterableConfig": 2,
    "Broker": 2,
    "Client": 2,
    "Committed": 2,
    "Committer": 2,
    "ConfigResource": 2,
    "EpochEndOffset": 2,
    "GroupMember": 2,
    "IsrChanges": 2,
    "PartitionLoad": 3,
    "Producer": 2,
    "TransactionState": 2,
}
"""Class names that stand more than once, with how often."""

SMALL: set[str] = {
    "broker/metrics/clients.py",
    "broker/metrics/coordinators.py",
    "broker/metrics/site.py",
    "broker/partitions/fence.py",
    "console/views.py",
    "replication/unregistration.py",
}
"""Modules of fewer than `LINES_MAX` lines that one module imports."""


@functools.cache
def trees() -> dict[str, tuple[str, int, ast.Module]]:
    """The path, the lines and the tree of each module, by its name."""
    found = {}
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))):
        name, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        if not path.name.endswith("_pb2.py"):
            module = ".".join(("lowtide", *name.with_suffix("").parts))
            found[module] = (str(name), len(text.splitlines()), ast.parse(text))
    return found


def repeated_names() -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for _, _, tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                counts[node.name] += 1
    return {name: count for name, count in sorted(counts.items()) if count > 1}


def importers() -> dict[str, set[str]]:
    """The modules that import each module of ours."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, (_, _, tree) in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    found[name].add(module)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    found[alias.name].add(module)
    return found


def small_modules() -> set[str]:
    by = importers()
    return {
        path
        for module, (path, lines, _) in trees().items()
        if lines < LINES_MAX
        and len(by[module]) == 1
        and not path.endswith("__init__.py")
        and not path.startswith(FOUND_BY_NAME)
    }


def test_class_names_are_unique() -> None:
    """The same thing has one name, and a name means one thing."""
    assert repeated_names() == REPEATED


def test_small_modules_are_part_of_the_module_that_uses_them() -> None:
    assert small_modules() == SMALL
